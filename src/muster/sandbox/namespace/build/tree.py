"""View of a sandbox over some layers, read on the host: nothing is mounted, no link leads out.

    path ─component by component─► the directories that merge there, topmost first ─► entry
    a whiteout, a file over a directory, or an opaque directory hides what lies below

Law: read-only. A link is followed as a process inside would: an absolute one from the tree's own root. With
`host_usr` the host's own /usr is the lowest layer of /usr, as it is for images that come from the host.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from muster.sandbox.dockerfile.ignore import Ignore

OPAQUE = "user.overlay.opaque"
"""Marks a directory that hides those below it. Overlays in sandboxes are mounted with `userxattr`."""

_MAX_LINKS = 40
_ROOT = PurePosixPath("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEntry:
    """A file, link or directory of the tree. `path` is where the host has it (a directory: its topmost part)."""

    path: Path
    parts: tuple[Path, ...] = ()  # of a directory: all that merge, topmost first; empty for anything else

    @property
    def is_directory(self) -> bool:
        return bool(self.parts)

    @property
    def is_link(self) -> bool:
        return not self.parts and self.path.is_symlink()


class LinkLoop(OSError):
    """A path that its links lead in circles."""


class LayerTree:
    """Merged tree of layers, lowest first.

    Example: `LayerTree((base, layer)).entry("/etc/passwd")`
    """

    def __init__(
        self,
        layers: tuple[Path, ...],
        *,
        host_usr: bool = False,
        ignore: Ignore | None = None,
    ) -> None:
        """`layers` base first. What `ignore` leaves out is not found by `walk` and `glob`."""
        self._root = TreeEntry(path=layers[-1], parts=tuple(reversed(layers)))
        self._host_usr = host_usr
        self._ignore = ignore or Ignore("")

    def entry(self, path: str) -> TreeEntry | None:
        """Entry at `path`, all links followed. None: nothing, or a link that leads nowhere."""
        return self._at(self.resolve(path))

    def resolve(self, path: str, *, follow_last: bool = True) -> PurePosixPath:
        """`path` with its links replaced by where they lead; what does not exist stays. Raises `LinkLoop`."""
        done, todo, links = _ROOT, [p for p in path.split("/") if p and p != "."], 0
        while todo:
            part = todo.pop(0)
            if part == "..":
                done = done.parent
                continue
            found = self._at(done / part)
            if found is None or not found.is_link or (not todo and not follow_last):
                done = done / part
                continue
            links += 1
            if links > _MAX_LINKS:
                raise LinkLoop(f"{path}: too many links")
            target = os.readlink(found.path)  # noqa: PTH115
            done = _ROOT if target.startswith("/") else done
            todo = [p for p in target.split("/") if p and p != "."] + todo
        return done

    def children(self, directory: TreeEntry) -> list[tuple[str, TreeEntry]]:
        """By name, sorted."""
        names = {name for part in directory.parts for name in os.listdir(part)}  # noqa: PTH208
        found = ((name, self._child(directory, name)) for name in sorted(names))
        return [(name, entry) for name, entry in found if entry is not None]

    def walk(self, path: PurePosixPath, directory: TreeEntry) -> Iterator[tuple[PurePosixPath, TreeEntry]]:
        """All below `directory`, which is at `path`: each directory before what it holds, names relative to `path`."""
        todo = [(PurePosixPath(), directory)]
        while todo:
            relative, current = todo.pop()
            for name, entry in self.children(current):
                inner = relative / name
                ignored = self._ignore(path / inner)
                if not ignored:
                    yield inner, entry
                if entry.is_directory and not (ignored and self._ignore.final):
                    todo.append((inner, entry))

    def glob(self, pattern: str) -> list[PurePosixPath]:
        """The paths that match, sorted: * and ? and [] within one component. Links above the last part are followed."""
        found = [_ROOT]
        for part in (p for p in pattern.split("/") if p and p != "."):
            if any(char in part for char in "*?["):
                part = part.replace("[^", "[!")
                inside = [(path, self._at(path)) for path in (self.resolve(str(p)) for p in found)]
                found = [
                    path / name
                    for path, entry in inside
                    if entry is not None
                    for name, _ in self.children(entry)
                    if fnmatchcase(name, part)
                ]
            else:
                found = [self.resolve(f"{path}/{part}", follow_last=False) for path in found]
        return [path for path in found if self._shown(path)]

    def _shown(self, path: PurePosixPath) -> bool:
        entry = self._at(path)
        if entry is None or not self._ignore(path):
            return entry is not None
        return entry.is_directory and any(True for _ in self.walk(path, entry))

    def _at(self, path: PurePosixPath) -> TreeEntry | None:
        """Entry at `path`, no link followed."""
        current: TreeEntry | None = self._root
        for part in path.parts[1:]:
            if current is None or not current.is_directory:
                return None
            current = self._child(current, part)
        return current

    def _child(self, directory: TreeEntry, name: str) -> TreeEntry | None:
        merged: list[Path] = []
        below = list(directory.parts)
        if self._host_usr and directory is self._root and name == "usr":
            below.append(Path("/"))
        for part in below:
            path = part / name
            try:
                status = path.lstat()
            except OSError:
                continue
            if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
                break  # a whiteout
            if not stat.S_ISDIR(status.st_mode):
                return TreeEntry(path=merged[0], parts=tuple(merged)) if merged else TreeEntry(path=path)
            merged.append(path)
            if is_opaque(path):
                break
        return TreeEntry(path=merged[0], parts=tuple(merged)) if merged else None


def is_opaque(directory: Path) -> bool:
    try:
        return os.getxattr(directory, OPAQUE) == b"y"
    except OSError:
        return False
