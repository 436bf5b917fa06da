"""File steps of an image: WORKDIR, COPY and ADD. Their key, and the layer that they make.

    consecutive steps ─► key: origin's key or the content of what is copied
                      ─► one layer, written on the host as a process in the image would have

Law: sources are found inside of their origin (build context, stage or image), whatever links say; targets lie where the
links of the layers below lead them, and directories keep the mode and owner that they have there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from muster.errors import TaskError
from muster.sandbox.dockerfile.ignore import Ignore
from muster.sandbox.dockerfile.steps import Copy, FileStep, MakeDirectory, Origin
from muster.sandbox.files import remove_tree
from muster.sandbox.namespace.build.archive import Unpacker, open_tar
from muster.sandbox.namespace.build.layers import Stack
from muster.sandbox.namespace.build.tree import LayerTree, LinkLoop, TreeEntry

_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOrigin:
    """Origin of copied files. `key` says what is in it; None: the content has to be read to know (a build context)."""

    name: str
    tree: LayerTree
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Something to copy: `name` is what it is called at the target."""

    name: PurePosixPath
    path: PurePosixPath
    entry: TreeEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copying:
    step: Copy
    place: CopyOrigin
    sources: tuple[_Source, ...]


def context_place(context: Path, dockerfile: Path | None) -> CopyOrigin:
    """The build context, without what its .dockerignore leaves out."""
    candidates = [Path(f"{dockerfile}.dockerignore")] if dockerfile else []
    file = next((f for f in [*candidates, context / ".dockerignore"] if f.is_file()), None)
    ignore = Ignore(file.read_text()) if file else None
    return CopyOrigin(name=f"the build context {context}", tree=LayerTree((context,), ignore=ignore))


class FileLayer:
    """The layer of some consecutive file steps. Raises `TaskError` for sources that are not there.

    Example: `plan = FileLayer(steps, file="Dockerfile", places={None: place}, below=stack)`
    """

    def __init__(
        self, steps: tuple[FileStep, ...], *, file: str, places: Mapping[Origin, CopyOrigin], below: Stack | None
    ) -> None:
        """`below` None: into an empty directory."""
        self._file = file
        self._below = below
        self._moves = tuple(
            _Copying(step=s, place=places[s.origin], sources=tuple(self._sources(s, places[s.origin])))
            if isinstance(s, Copy)
            else s
            for s in steps
        )

    def key(self, below: str) -> str:
        state = hashlib.sha256(below.encode())
        for move in self._moves:
            if isinstance(move, MakeDirectory):
                state.update(f"directory {move.path}\0".encode())
                continue
            step = move.step
            documents = [(d.name, d.content) for d in step.documents]
            how = (step.target, step.owner, step.mode, step.extract, step.exclude, step.parents, documents)
            state.update(f"copy {how!r} {move.place.key}\0".encode())
            for source in move.sources:
                state.update(f"{source.name} {source.path}\0".encode())
                for name, entry in _all(source, move.place.tree, step.exclude) if move.place.key is None else ():
                    _fingerprint(state.update, name, entry)
        return state.hexdigest()[:24]

    def write(self, layer: Path) -> None:
        lower, host_usr = (self._below.layers, self._below.host_usr) if self._below else ((), False)
        writer = _Writer(layer, LayerTree((*lower, layer), host_usr=host_usr))
        for move in self._moves:
            if isinstance(move, MakeDirectory):
                writer.directory(move.path)
                continue
            try:
                self._copy(writer, move)
            except LinkLoop as error:
                raise self._error(move.step, str(error)) from None

    def _copy(self, writer: _Writer, move: _Copying) -> None:
        step = move.step
        owner = self._owner(step, writer.tree) if step.owner else None
        if owner is None and step.origin is None:
            owner = (0, 0)
        for document in step.documents:
            into = step.target.endswith("/") or writer.is_directory(step.target)
            target = PurePosixPath(step.target) / (document.name if into else "")
            writer.text(target, document.content, owner=owner, mode=0o644 if step.mode is None else step.mode)
        for source in move.sources:
            if source.entry.is_directory:
                base = PurePosixPath(step.target, source.name if step.parents else "")
                writer.directory(str(base), owner=owner)
                for name, entry in _all(source, move.place.tree, step.exclude):
                    writer.put(entry, base / name, owner=owner, mode=step.mode)
            elif step.extract and source.entry.path.is_file() and tarfile.is_tarfile(source.entry.path):
                self._unpack(writer, source.entry.path, step, owner if step.owner else None)
            else:
                into = step.target.endswith("/") or len(move.sources) > 1 or writer.is_directory(step.target)
                target = PurePosixPath(step.target) / (source.name if into or step.parents else "")
                writer.put(source.entry, target, owner=owner, mode=step.mode)

    def _unpack(self, writer: _Writer, archive: Path, step: Copy, owner: tuple[int, int] | None) -> None:
        """Aside first: what the archive holds is then copied like all else, where the links of the image lead."""
        aside = writer.layer.with_name(f"{writer.layer.name}.add")
        aside.mkdir(mode=0o700)
        try:
            with open_tar(archive, f"{self._file}:{step.line}: ADD {archive.name}") as tar:
                Unpacker(aside).unpack(tar)
            content = LayerTree((aside,))
            root = content.entry("/")
            assert root is not None
            for name, entry in content.walk(PurePosixPath("/"), root):
                writer.put(entry, PurePosixPath(step.target) / name, owner=owner, mode=step.mode)
        finally:
            remove_tree(aside)

    def _sources(self, step: Copy, place: CopyOrigin) -> Iterator[_Source]:
        for pattern in step.sources:
            try:
                found = list(_find(pattern, place.tree, parents=step.parents))
            except LinkLoop as error:
                raise self._error(step, str(error)) from None
            if not found:
                raise self._error(step, f"there is no {pattern!r} in {place.name}")
            yield from found

    def _owner(self, step: Copy, tree: LayerTree) -> tuple[int, int]:
        user, _, group = step.owner.partition(":")
        uid, primary = (int(user), int(user)) if user.isdigit() else self._look_up(step, tree, "/etc/passwd", user)
        if not group:
            return uid, primary
        return uid, int(group) if group.isdigit() else self._look_up(step, tree, "/etc/group", group)[0]

    def _look_up(self, step: Copy, tree: LayerTree, database: str, name: str) -> tuple[int, int]:
        """The two numbers after a name of passwd (user, group) or group (group, and nothing of use)."""
        entry = tree.entry(database)
        for line in entry.path.read_text(errors="replace").splitlines() if entry else ():
            fields = line.split(":")
            if fields[0] == name and len(fields) > 3 and fields[2].isdigit():
                return int(fields[2]), int(fields[3]) if fields[3].isdigit() else 0
        raise self._error(
            step, f"--chown={step.owner}: {name!r} is not in {database} of the image; add it before, or use numbers"
        )

    def _error(self, step: Copy, message: str) -> TaskError:
        return TaskError(f"{self._file}:{step.line}: {step.name}: {message}")


class _Writer:
    """Puts files into a layer at paths of the image, as seen through `tree` (the layer on top of those below)."""

    def __init__(self, layer: Path, tree: LayerTree) -> None:
        self.layer = layer
        self.tree = tree

    def is_directory(self, path: str) -> bool:
        entry = self.tree.entry(path)
        return entry is not None and entry.is_directory

    def directory(self, path: str, owner: tuple[int, int] | None = None) -> Path:
        """Make `path` where links lead it. One that exists below keeps its mode and owner."""
        made, inside = self.layer, PurePosixPath("/")
        for part in self.tree.resolve(path).parts[1:]:
            made, inside = made / part, inside / part
            if made.is_dir() and not made.is_symlink():
                continue
            below = self.tree.entry(str(inside))
            made.unlink(missing_ok=True)
            made.mkdir()
            if below is not None and below.is_directory:
                status = below.path.lstat()
                _own(made, (status.st_uid, status.st_gid))
                made.chmod(stat.S_IMODE(status.st_mode))
            else:
                _own(made, owner or (0, 0))
                made.chmod(0o755)
        return made

    def put(self, entry: TreeEntry, path: PurePosixPath, *, owner: tuple[int, int] | None, mode: int | None) -> None:
        """A copy of `entry` at `path`; a directory without what it holds. Owner None: as it is."""
        status = entry.path.lstat()
        owner = owner or (status.st_uid, status.st_gid)
        if entry.is_directory:
            new = not self.is_directory(str(path))
            made = self.directory(str(path), owner)
            if new:
                made.chmod(stat.S_IMODE(status.st_mode) if mode is None else mode)
            return
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            return  # sockets, pipes and devices belong to a process, not to an image
        target = self._free(path)
        shutil.copy2(entry.path, target, follow_symlinks=False)
        _own(target, owner)
        if not target.is_symlink():
            target.chmod(stat.S_IMODE(status.st_mode) if mode is None else mode)

    def text(self, path: PurePosixPath, content: str, *, owner: tuple[int, int] | None, mode: int) -> None:
        target = self._free(path)
        target.write_text(content)
        _own(target, owner or (0, 0))
        target.chmod(mode)

    def _free(self, path: PurePosixPath) -> Path:
        """Make room for the file, and return its path; what this layer had there is gone."""
        target = self.directory(str(path.parent)) / path.name
        if target.is_dir() and not target.is_symlink():
            remove_tree(target)
        target.unlink(missing_ok=True)
        return target


def _find(pattern: str, tree: LayerTree, *, parents: bool) -> Iterator[_Source]:
    """With `parents` a name keeps the directories after a /./ in the pattern. Raises `LinkLoop`."""
    pivot, _, rest = pattern.rpartition("/./") if parents else ("", "", pattern)
    start = tree.resolve(f"/{pivot}")
    for path in tree.glob(f"{pivot}/{rest}"):
        resolved = tree.resolve(str(path))
        entry = tree.entry(str(resolved))
        if entry is not None:
            name = path.relative_to(start) if parents else PurePosixPath(path.name)
            yield _Source(name=name, path=resolved, entry=entry)


def _all(source: _Source, tree: LayerTree, exclude: tuple[str, ...]) -> Iterator[tuple[PurePosixPath, TreeEntry]]:
    """The source itself if it is a file, else all below it, as paths below the target."""
    if not source.entry.is_directory:
        yield source.name, source.entry
        return
    left_out = Ignore("\n".join(exclude))
    for name, entry in tree.walk(source.path, source.entry):
        if not left_out(PurePosixPath("/") / name):
            yield name, entry


def _fingerprint(update: Callable[[bytes], None], name: PurePosixPath, entry: TreeEntry) -> None:
    status = entry.path.lstat()
    if stat.S_ISLNK(status.st_mode):
        update(os.fsencode(f"{name} link {os.readlink(entry.path)}\0"))  # noqa: PTH115
        return
    regular = stat.S_ISREG(status.st_mode)
    update(os.fsencode(f"{name} {status.st_mode:o} {status.st_size if regular else 0}\0"))
    if regular:
        with entry.path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                update(chunk)


def _own(path: Path, owner: tuple[int, int]) -> None:
    """As an ordinary user all is ours, which a sandbox shows as root's."""
    if os.geteuid() == 0:
        os.chown(path, *owner, follow_symlinks=False)
