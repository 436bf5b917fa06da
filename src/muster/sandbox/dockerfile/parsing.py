"""Reading a Dockerfile. Law: pure text to instructions; what an instruction does is decided in `recipe`.

    text ─► directives ─► lines joined ─► here-documents taken ─► Instruction* ─► stages, one for each FROM

We read it ourselves: the one parser on PyPI, `dockerfile-parse`, takes the lines of a here-document for instructions,
and joins continued lines to the point that line numbers and quoting are lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from muster.errors import TaskError
from muster.sandbox.dockerfile.words import WordError, split

INSTRUCTIONS = frozenset(
    {"ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "MAINTAINER"}
    | {"ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}
)
_FLAGGED = frozenset({"ADD", "COPY", "FROM", "HEALTHCHECK", "RUN"})
_DOCUMENTED = frozenset({"ADD", "COPY", "RUN"})
_DIRECTIVE = re.compile(r"#\s*(\w+)\s*=\s*(\S+)\s*$")
_HERE = re.compile(r"\d*<<(-?)([\"']?)([A-Za-z_][\w.-]*)\2$")


@dataclass(frozen=True, slots=True, kw_only=True)
class HereDocument:
    """`<<NAME` with the lines up to NAME. `raw` is the text as it stands, its end mark included."""

    word: str  # as the instruction names it: <<-"NAME"
    name: str
    content: str
    expand: bool  # the name was not quoted
    raw: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction, continuation lines joined. `line` is where it starts, from 1."""

    line: int
    name: str
    value: str  # without flags
    flags: tuple[tuple[str, str], ...] = ()  # ("from", "build") for --from=build
    documents: tuple[HereDocument, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStage:
    """One FROM and what follows it. `base` is as written: variables are not replaced yet."""

    line: int
    base: str
    name: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dockerfile:
    """A whole file. `arguments` are the ARG instructions before the first FROM."""

    file: str
    escape: str
    arguments: tuple[Instruction, ...]
    stages: tuple[BuildStage, ...]

    def error(self, it: Instruction | BuildStage, message: str) -> TaskError:
        return _error(self.file, it.line, it.name if isinstance(it, Instruction) else "FROM", message)


def parse(text: str, file: Path | str = "Dockerfile") -> Dockerfile:
    """Raises `TaskError` naming file, line and instruction."""
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    escape = _escape(lines)
    arguments: list[Instruction] = []
    stages: list[tuple[Instruction, list[Instruction]]] = []
    for it in _instructions(lines, escape, str(file)):
        if it.name == "FROM":
            stages.append((it, []))
        elif stages:
            stages[-1][1].append(it)
        elif it.name == "ARG":
            arguments.append(it)
        else:
            raise _error(str(file), it.line, it.name, "the first instruction must be FROM (only ARG may come before)")
    if not stages:
        raise TaskError(f"{file}: has no FROM: begin with the image that the task's environment is made from")
    return Dockerfile(
        file=str(file),
        escape=escape,
        arguments=tuple(arguments),
        stages=tuple(_stage(it, tuple(body), str(file)) for it, body in stages),
    )


def _escape(lines: list[str]) -> str:
    """The escape character, as `# escape=` among the leading directives sets it. `# syntax=` has no effect."""
    for line in lines:
        directive = _DIRECTIVE.match(line.strip())
        if directive is None:
            break
        if directive[1].lower() == "escape" and directive[2] in ("\\", "`"):
            return directive[2]
    return "\\"


def _instructions(lines: list[str], escape: str, file: str) -> list[Instruction]:
    result: list[Instruction] = []
    continued = re.compile(rf"(?<!{re.escape(escape)}){re.escape(escape)}[ \t]*$")
    position = 0
    while position < len(lines):
        start, text = position + 1, ""
        more = True
        while more and position < len(lines):
            line = lines[position]
            position += 1
            if not line.strip() or line.lstrip().startswith("#"):
                more = bool(text)  # comments and empty lines are left out, inside of an instruction as well
                continue
            more = continued.search(line) is not None
            text += continued.sub("", line) if text else continued.sub("", line.lstrip())
        if text.strip():
            it, position = _instruction(text.strip(), start, lines, position, escape, file)
            result.append(it)
    return result


def _instruction(
    text: str, line: int, lines: list[str], position: int, escape: str, file: str
) -> tuple[Instruction, int]:
    """The instruction, and where the lines after its here-documents begin."""
    name, *rest = text.split(maxsplit=1)
    name, value = name.upper(), "".join(rest)
    if name not in INSTRUCTIONS:
        raise _error(file, line, name, f"no such instruction; there are {', '.join(sorted(INSTRUCTIONS))}")
    flags: list[tuple[str, str]] = []
    while name in _FLAGGED and (flag := re.match(r"--([a-z-]+)(?:=(\S*))?(?:\s+|$)", value)):
        flags.append((flag[1], flag[2] or ""))
        value = value[flag.end() :]
    documents: list[HereDocument] = []
    if name in _DOCUMENTED and "<<" in value:
        try:
            words = split(value, escape)
        except WordError:
            words = []  # quotes that only the shell understands: then it is for the shell to say
        for word in words:
            if here := _HERE.match(word):
                document, position = _document(here, lines, position)
                if document is None:
                    raise _error(file, line, name, f"the here-document {word} does not end: no line is {here[3]}")
                documents.append(document)
    it = Instruction(line=line, name=name, value=value, flags=tuple(flags), documents=tuple(documents))
    return it, position


def _document(here: re.Match[str], lines: list[str], position: int) -> tuple[HereDocument | None, int]:
    chomp, name = here[1] == "-", here[3]
    for end in range(position, len(lines)):
        if (lines[end].lstrip("\t") if chomp else lines[end]) == name:
            body = lines[position:end]
            content = "".join(f"{line.lstrip(chr(9)) if chomp else line}\n" for line in body)
            raw = "\n".join([*body, lines[end]])
            document = HereDocument(word=here[0], name=name, content=content, expand=not here[2], raw=raw)
            return document, end + 1
    return None, position


def _stage(it: Instruction, instructions: tuple[Instruction, ...], file: str) -> BuildStage:
    words = it.value.split()
    for flag, _ in it.flags:
        if flag != "platform":
            raise _error(file, it.line, "FROM", f"--{flag} is unknown; only --platform is, and has no effect")
    if len(words) == 3 and words[1].upper() == "AS":
        return BuildStage(line=it.line, base=words[0], name=words[2].lower(), instructions=instructions)
    if len(words) != 1:
        raise _error(file, it.line, "FROM", f"write FROM image, or FROM image AS name, not {it.value!r}")
    return BuildStage(line=it.line, base=words[0], name="", instructions=instructions)


def _error(file: str, line: int, name: str, message: str) -> TaskError:
    return TaskError(f"{file}:{line}: {name}: {message}")
