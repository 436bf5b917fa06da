"""Reading a Dockerfile. Law: pure text to instructions; what is not supported is an error that names the line.

Supported: FROM (one stage), ARG, ENV, WORKDIR, COPY (--chmod), RUN, USER root. Without effect on the files:
CMD, ENTRYPOINT, LABEL, MAINTAINER, EXPOSE, STOPSIGNAL (the sandbox always runs bash). All else is refused.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from muster.errors import TaskError

IGNORED = frozenset({"CMD", "ENTRYPOINT", "LABEL", "MAINTAINER", "EXPOSE", "STOPSIGNAL"})
_HERE_DOCUMENT = re.compile(r"<<-?\s*[\"']?\w+[\"']?\s*$")
_VARIABLE = re.compile(r"\\(\$)|\$(?:(\w+)|\{(\w+)(?:(:[-+])([^}]*))?\})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction, continuation lines joined. `line` is where it starts, from 1."""

    line: int
    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeDirectory:
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """`sources` are relative to the build context; `target` is absolute and keeps its trailing slash."""

    line: int
    sources: tuple[str, ...]
    target: str
    mode: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    line: int
    command: str
    env: Mapping[str, str]
    workdir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What to do, in order, and what a sandbox of the image starts with."""

    steps: tuple[MakeDirectory | Copy | Run, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str = "/"


def parse(text: str, file: Path | str = "Dockerfile") -> Recipe:
    """Raises `TaskError` naming file, line and instruction."""
    reader = _Reader(str(file))
    for instruction in instructions(text):
        reader.take(instruction)
    return reader.recipe()


def instructions(text: str) -> list[Instruction]:
    """Join continuation lines, drop comments and empty lines."""
    result: list[Instruction] = []
    start, parts = 0, list[str]()
    for number, raw in enumerate(text.splitlines(), start=1):
        stripped = raw.strip()
        if not stripped or stripped.startswith("#"):
            continue  # inside a continuation as well, as Docker does
        if not parts:
            start = number
        continued = stripped.endswith("\\")
        parts.append(stripped.removesuffix("\\").rstrip() if continued else stripped)
        if not continued:
            result.append(_instruction(start, parts))
            parts = []
    if parts:
        result.append(_instruction(start, parts))
    return result


def _instruction(line: int, parts: list[str]) -> Instruction:
    name, _, value = " ".join(parts).partition(" ")
    return Instruction(line=line, name=name.upper(), value=value.strip())


class _Reader:
    """Collects the recipe, one instruction after the other."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._steps: list[MakeDirectory | Copy | Run] = []
        self._env: dict[str, str] = {}
        self._args: dict[str, str] = {}
        self._workdir = "/"
        self._stages = 0

    def recipe(self) -> Recipe:
        return Recipe(steps=tuple(self._steps), env=dict(self._env), workdir=self._workdir)

    def take(self, it: Instruction) -> None:
        if it.name in IGNORED:
            return
        if self._stages == 0 and it.name not in ("FROM", "ARG"):
            raise self._error(it, "the first instruction must be FROM")
        handlers = {
            "FROM": self._from,
            "ARG": self._arg,
            "ENV": self._set_env,
            "WORKDIR": self._set_workdir,
            "COPY": self._copy,
            "RUN": self._run,
            "USER": self._user,
        }
        handler = handlers.get(it.name)
        if handler is None:
            raise self._error(it, f"not supported; supported are {', '.join([*handlers, *sorted(IGNORED)])}")
        handler(it)

    def _from(self, it: Instruction) -> None:
        self._stages += 1
        if self._stages > 1:
            raise self._error(it, "only one build stage is supported")

    def _arg(self, it: Instruction) -> None:
        name, _, default = it.value.partition("=")
        self._args[name.strip()] = self._expand(self._words(it, default)[0] if default else "")

    def _set_env(self, it: Instruction) -> None:
        first, _, rest = it.value.partition(" ")
        if "=" not in first:  # the old form: ENV KEY all the rest
            self._env[first] = self._expand(rest.strip())
            return
        for word in self._words(it, it.value):
            key, separator, value = word.partition("=")
            if not separator or not key:
                raise self._error(it, f"{word!r} is not KEY=value")
            self._env[key] = self._expand(value)

    def _set_workdir(self, it: Instruction) -> None:
        path = self._expand(self._words(it, it.value)[0]) if it.value else "/"
        self._workdir = _absolute(self._workdir, path).rstrip("/") or "/"
        self._steps.append(MakeDirectory(path=self._workdir))

    def _copy(self, it: Instruction) -> None:
        value, mode = it.value, None
        while value.startswith("--"):
            flag, _, value = value.partition(" ")
            value = value.strip()
            name, _, setting = flag.partition("=")
            if name == "--chmod" and re.fullmatch(r"[0-7]{3,4}", setting):
                mode = int(setting, 8)
            elif not (name == "--chown" and setting in ("root", "root:root", "0", "0:0")):
                raise self._error(it, f"{flag} is not supported (--chmod=OCTAL and --chown=root are)")
        words = [self._expand(word) for word in _array(value) or self._words(it, value)]
        if len(words) < 2:
            raise self._error(it, "needs at least one source and a target")
        *sources, target = words
        if len(sources) > 1 and not target.endswith("/"):
            raise self._error(it, "several sources need a target that ends with /")
        target = _absolute(self._workdir, target)
        self._steps.append(Copy(line=it.line, sources=tuple(sources), target=target, mode=mode))

    def _run(self, it: Instruction) -> None:
        if it.value.startswith("--") or _HERE_DOCUMENT.search(it.value):
            raise self._error(it, "options and here-documents are not supported")
        array = _array(it.value)
        command = shlex.join(array) if array else it.value
        env = {**self._args, **self._env}
        self._steps.append(Run(line=it.line, command=command, env=env, workdir=self._workdir))

    def _user(self, it: Instruction) -> None:
        if it.value not in ("root", "0", "root:root", "0:0"):
            raise self._error(it, "only USER root is supported")

    def _expand(self, text: str) -> str:
        """$NAME, ${NAME}, ${NAME:-default}, ${NAME:+other}; ENV wins over ARG; unknown is empty."""
        known = {**self._args, **self._env}

        def value(match: re.Match[str]) -> str:
            if match[1]:
                return "$"
            found = known.get(match[2] or match[3], "")
            if match[4] == ":-":
                return found or match[5]
            if match[4] == ":+":
                return match[5] if found else ""
            return found

        return _VARIABLE.sub(value, text)

    def _words(self, it: Instruction, text: str) -> list[str]:
        try:
            return shlex.split(text)
        except ValueError as error:
            raise self._error(it, str(error)) from None

    def _error(self, it: Instruction, message: str) -> TaskError:
        return TaskError(f"{self._file}:{it.line}: {it.name}: {message}")


def _array(text: str) -> list[str] | None:
    """The words of a JSON array of strings; None for anything else, which then is the shell form (as in Docker)."""
    if not text.startswith("["):
        return None
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    words = cast(list[object], value) if isinstance(value, list) else []
    return [str(word) for word in words] if all(isinstance(word, str) for word in words) else None


def _absolute(workdir: str, path: str) -> str:
    joined = path if path.startswith("/") else f"{workdir.rstrip('/')}/{path}"
    parts: list[str] = []
    for part in joined.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    is_directory = path.endswith(("/", "/.")) or path in (".", "..")
    return "/" + "/".join(parts) + ("/" if is_directory and parts else "")
