"""A task directory while it is read: its files, and the variables its `env` tables may use.

Law: the host reads no file through a link, so that a task cannot make it read its own, and of its environment it
hands out only what the caller put into `variables`. Every error names the file and what to do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from muster.errors import TaskError
from muster.tasks.task_toml import TaskToml

_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDirectory:
    """Directory of a task. `root` is resolved; paths within it are relative, with slashes."""

    root: Path
    toml: TaskToml
    variables: Mapping[str, str]

    def fault(self, key: str, problem: str) -> TaskError:
        """An error about a key of task.toml."""
        return TaskError(f"{self.root / 'task.toml'}: {key}: {problem}")

    def has(self, relative: str) -> bool:
        """Whether there is anything by that name, be it a link to nowhere."""
        return os.path.lexists(f"{self.root}/{relative}")

    def file(self, relative: str) -> Path:
        return regular(self.root, relative)

    def directory(self, relative: str) -> Path:
        path = _unlinked(self.root, relative)
        if not path.is_dir():
            raise TaskError(f"{path}: not a directory")
        return path

    def text(self, relative: str) -> str:
        return read_text(self.file(relative))

    def resolve(self, env: Mapping[str, str], key: str) -> dict[str, str]:
        """Replace `${NAME}` and `${NAME:-default}`. Raises `TaskError` for a name without a value."""

        def value(match: re.Match[str]) -> str:
            name: str = match[1]
            default: str | None = match[2]
            found = self.variables.get(name, default)
            if found is None:
                raise self.fault(key, f"${{{name}}} has no value; pass it, or write ${{{name}:-default}}")
            return found

        return {name: _VARIABLE.sub(value, text) for name, text in env.items()}


def regular(root: Path, relative: str) -> Path:
    """The plain file at `relative` below `root`. Raises `TaskError` for a missing one and for a link on the way."""
    path = _unlinked(root, relative)
    if not path.is_file():
        raise TaskError(f"{path}: missing")
    return path


def _unlinked(root: Path, relative: str) -> Path:
    path = root
    for part in PurePosixPath(relative).parts:
        path = path / part
        if path.is_symlink():
            raise TaskError(f"{root / relative}: reached through a symbolic link; put the thing itself there")
    return path


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path}: not UTF-8 at byte {error.start}") from None
