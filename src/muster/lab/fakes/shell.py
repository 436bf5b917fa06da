"""The handful of commands that a fake sandbox knows, over a dict of files.

Law: no process, no host file but those of a mount, no time but `clock.sleep`. Unknown commands end with 127, as
in bash. See `fake_sandbox` for the list.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from muster import clock

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_PLAIN = re.compile(r"[;&|>\n]+|[^ \t;&|>\n]+")  # words and punctuation of a line without quotes
_QUOTES = frozenset("'\"\\")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


class Ended(Exception):
    """The command ended its shell."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Destroyed(Exception):
    """The command ended its sandbox."""


class _Failed(Exception):
    """A command failed: its message, and exit code 1."""


@dataclass(slots=True)
class FakeShell:
    """State of a shell between commands."""

    cwd: str
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def copy(self) -> FakeShell:
        return FakeShell(self.cwd, dict(self.variables))


class Files:
    """A tree of files. Mounted host directories are read at mount time; writes to them go through."""

    def __init__(self, directories: set[str], content: dict[str, bytes] | None = None) -> None:
        self.directories = directories
        self.content = dict(content or {})
        self._mounts: list[tuple[str, Path]] = []

    def copy(self) -> Files:
        return Files(set(self.directories), self.content)

    def add_host(self, source: Path, target: str) -> None:
        self._mounts.append((target, source))
        self.make_directory(target)
        for path in sorted(p for p in source.rglob("*") if p.is_file()):
            inner = posixpath.join(target, path.relative_to(source).as_posix())
            self.make_directory(posixpath.dirname(inner))
            self.content[inner] = path.read_bytes()

    def take_over(self, other: Files, tops: tuple[str, ...]) -> None:
        """Make what lies below `tops` as it is in `other`."""

        def below(path: str) -> bool:
            return path.startswith(tuple(f"{top}/" for top in tops))

        self.directories = {p for p in self.directories if not below(p)} | {p for p in other.directories if below(p)}
        self.content = {p: c for p, c in self.content.items() if not below(p)}
        self.content |= {p: c for p, c in other.content.items() if below(p)}

    def make_directory(self, path: str) -> None:
        while path not in self.directories:
            self.directories.add(path)
            path = posixpath.dirname(path)

    def read(self, path: str) -> bytes:
        path = posixpath.normpath(path)
        if path in self.directories:
            raise IsADirectoryError(path)
        if path not in self.content:
            raise FileNotFoundError(path)
        return self.content[path]

    def write(self, path: str, data: bytes) -> None:
        path = posixpath.normpath(path)
        if path in self.directories:
            raise IsADirectoryError(path)
        if posixpath.dirname(path) not in self.directories:
            raise FileNotFoundError(path)
        self.content[path] = data
        for target, source in self._mounts:
            if path.startswith(target + "/"):
                (source / path[len(target) + 1 :]).write_bytes(data)

    def remove(self, path: str) -> bool:
        """A file, or a directory with all below it. False if there is none."""
        below = path.rstrip("/") + "/"
        gone = [p for p in (*self.content, *self.directories) if p == path or p.startswith(below)]
        for p in gone:
            self.content.pop(p, None)
            self.directories.discard(p)
        return bool(gone)

    @property
    def size_bytes(self) -> int:
        return sum(len(data) for data in self.content.values())


class Interpreter:
    """Runs one command line. `output` holds what it printed so far, also after a time-out.

    `on_output` is called whenever it prints, `on_background` with the seconds that something goes on behind it.
    """

    def __init__(
        self,
        files: Files,
        shell: FakeShell,
        on_output: Callable[[], None] = lambda: None,
        on_background: Callable[[float], None] = lambda duration_s: None,
    ) -> None:
        self._files = files
        self._shell = shell
        self._on_output = on_output
        self._on_background = on_background
        self.output = ""
        self._commands: dict[str, Callable[[list[str]], str]] = {
            "cat": self._cat,
            "cd": self._cd,
            "cp": self._copy,
            "echo": lambda words: " ".join(words) + "\n",
            "export": self._export,
            "ls": self._ls,
            "mkdir": self._mkdir,
            "mv": self._move,
            "pwd": lambda _: self._shell.cwd + "\n",
            "rm": self._rm,
            "touch": self._touch,
        }

    async def run(self, line: str) -> int:
        """The exit code of the last command run."""
        try:
            words = _split(line)
        except ValueError as error:
            self.output += f"bash: {error}\n"
            return 2
        code, skip, command = 0, False, list[str]()
        for word in [*words, ";"]:
            if word not in (";", "\n", "&&", "||"):
                command.append(word)
                continue
            if command and not skip:
                code = await self._one(command)
            command = []
            skip = (word == "&&" and code != 0) or (word == "||" and code == 0)
        return code

    async def _one(self, words: list[str]) -> int:
        target, append = None, False
        if len(words) >= 3 and words[-2] in (">", ">>"):
            target, append = self._expand(words[-1]), words[-2] == ">>"
            words = words[:-2]
        name, *arguments = [self._expand(word) for word in words]
        try:
            code, text = await self._execute(name, arguments)
            if target is not None:
                path = self._path(target)
                before = self._files.content.get(path, b"") if append else b""
                self._files.write(path, before + text.encode())
                text = ""
        except (_Failed, FileNotFoundError, IsADirectoryError) as error:
            code, text = 1, f"{name}: {error}\n"
        if text:
            self.output += text
            self._on_output()
        return code

    async def _execute(self, name: str, arguments: list[str]) -> tuple[int, str]:
        if name == "sleep" and arguments[-1] == "&":
            self._on_background(float(arguments[0]))
            return 0, ""
        if name == "sleep":
            await clock.sleep(float(arguments[0]))
            return 0, ""
        if name in ("bash", "sh", "/usr/bin/bash", "/bin/sh"):
            script = self._files.read(self._path(arguments[-1])).decode()
            return await Interpreter.run(self, script), ""
        if name == "exit":
            raise Ended(int(arguments[0]) if arguments else 0)
        if name == "destroy":
            raise Destroyed
        if name in ("true", "false", "test", "["):
            return (0 if name == "true" or (name in ("test", "[") and self._test(arguments)) else 1), ""
        if assignment := _ASSIGNMENT.fullmatch(name):
            self._shell.variables[assignment[1]] = assignment[2]
            return 0, ""
        if name.startswith("#"):
            return 0, ""
        command = self._commands.get(name)
        if command is None:
            return 127, f"bash: {name}: command not found\n"
        return 0, command(arguments)

    def _expand(self, word: str) -> str:
        return _VARIABLE.sub(lambda m: self._shell.variables.get(m[1] or m[2], ""), word)

    def _path(self, word: str) -> str:
        return posixpath.normpath(posixpath.join(self._shell.cwd, word))

    def _test(self, words: list[str]) -> bool:
        words = [word for word in words if word != "]"]
        match words:
            case ["-f", path]:
                return self._path(path) in self._files.content
            case ["-d", path]:
                return self._path(path) in self._files.directories
            case [left, "=", right]:
                return left == right
            case _:
                return False

    def _cat(self, words: list[str]) -> str:
        return "".join(self._files.read(self._path(w)).decode(errors="replace") for w in words)

    def _cd(self, words: list[str]) -> str:
        path = self._path(words[0] if words else "/root")
        if path not in self._files.directories:
            raise _Failed(f"{path}: No such file or directory")
        self._shell.cwd = path
        return ""

    def _copy(self, words: list[str]) -> str:
        source, target = self._path(words[0]), self._path(words[1])
        if target in self._files.directories:
            target = posixpath.join(target, posixpath.basename(source))
        self._files.write(target, self._files.read(source))
        return ""

    def _move(self, words: list[str]) -> str:
        self._copy(words)
        self._files.remove(self._path(words[0]))
        return ""

    def _export(self, words: list[str]) -> str:
        for word in words:
            if assignment := _ASSIGNMENT.fullmatch(word):
                self._shell.variables[assignment[1]] = assignment[2]
        return ""

    def _ls(self, words: list[str]) -> str:
        path = self._path(words[0] if words else ".")
        if path in self._files.content:
            return path + "\n"
        if path not in self._files.directories:
            raise _Failed(f"{path}: No such file or directory")
        entries = (*self._files.content, *self._files.directories)
        names = {posixpath.basename(p) for p in entries if p != "/" and posixpath.dirname(p) == path}
        return "".join(name + "\n" for name in sorted(names))

    def _mkdir(self, words: list[str]) -> str:
        for word in words:
            if word == "-p":
                continue
            path = self._path(word)
            if "-p" not in words and posixpath.dirname(path) not in self._files.directories:
                raise _Failed(f"cannot create directory '{word}': No such file or directory")
            self._files.make_directory(path)
        return ""

    def _rm(self, words: list[str]) -> str:
        for word in words:
            if not word.startswith("-") and not self._files.remove(self._path(word)) and "-f" not in words:
                raise _Failed(f"cannot remove '{word}': No such file or directory")
        return ""

    def _touch(self, words: list[str]) -> str:
        for word in words:
            path = self._path(word)
            self._files.write(path, self._files.content.get(path, b""))
        return ""


def _split(line: str) -> list[str]:
    words: list[str] = []
    for token in _PLAIN.findall(line) if _QUOTES.isdisjoint(line) else _lexed(line):
        # neighbouring punctuation comes as one token
        words += ["\n"] * len(token) if token.strip("\n") == "" else [token.strip("\n")]
    return words


def _lexed(line: str) -> Iterable[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|>\n")
    lexer.whitespace = " \t"
    lexer.wordchars += "$:,=+@%^{}[]!"
    lexer.commenters = ""
    return lexer
