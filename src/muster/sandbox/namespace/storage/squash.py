"""Merging the layers of a long chain of snapshots into one, which shows the same files.

    image layers  │ own layers, topmost first            merged
    (stay below)  │ d/ (opaque)   f   whiteout g    ─►   each name as its topmost layer has it; a directory is the
                  │ d/…   f   g/…                        union down to the first layer that hides what is below

Law: layers are frozen, so files are hard links to them and no data is copied where one file system holds both. A
whiteout is kept where the image below has a directory for it to matter in, and nowhere else: in a directory that is
not merged it would show up as a device. What overlayfs notes for itself (origin, impure) is left behind.

While the old layers live, `stat` counts their links too; that number alone differs from what the chain shows.
bubblewrap mounts with `userxattr`: the notes are extended attributes `user.overlay.*`, and none redirects elsewhere.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from muster.sandbox.namespace.storage.state import RunDirectory

OWN_LAYERS = 16
"""A chain with more layers of its own than that is merged. Measured: forks slow down above 60 layers."""

_NOTES = "user.overlay."
_OPAQUE = _NOTES + "opaque"
_ESCAPED = _NOTES + "overlay."  # of an overlay that somebody made inside of the sandbox


class CannotSquash(Exception):
    """The layers are as they were; the message says what stands against merging them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Directory:
    """One directory of the result. `own` and `image`: where it exists in the layers, topmost first."""

    target: Path
    own: list[Path]
    image: list[Path]


async def shortened(
    layers: tuple[Path, ...], run: RunDirectory, release: Callable[[tuple[Path, ...]], None]
) -> tuple[Path, ...]:
    """`layers` (base first) with those of `run` merged into one, once they are many; the old ones are released."""
    own = tuple(layer for layer in layers if run.owns(layer))
    if len(own) <= OWN_LAYERS:
        return layers
    image = layers[: len(layers) - len(own)]
    merged = run.new_layer()
    try:
        await asyncio.to_thread(squash, own, image, merged.fs)
    except CannotSquash:  # the chain stays long, and works
        release((merged.fs,))
        return layers
    release(own)
    return (*image, merged.fs)


def squash(own: tuple[Path, ...], image: tuple[Path, ...], target: Path) -> None:
    """Fill the empty directory `target` with what `own` (base first) show above `image`. Blocks.

    Raises `CannotSquash`, also for trees deeper than a path can say; `target` is then half full.
    """
    todo = [_Directory(target=target, own=list(reversed(own)), image=list(reversed(image)))]
    links: dict[tuple[int, int], Path] = {}
    try:
        while todo:
            todo += _merge(todo.pop(), links)
    except OSError as error:
        raise CannotSquash(f"{error.filename}: {error.strerror}") from error


def _merge(directory: _Directory, links: dict[tuple[int, int], Path]) -> list[_Directory]:
    """Make the entries of one directory; return the directories among them. Its own times come last."""
    entries: dict[str, list[os.DirEntry[str]]] = {}
    for layer in directory.own:
        with os.scandir(layer) as found:
            for entry in found:
                entries.setdefault(entry.name, []).append(entry)
    inner: list[_Directory] = []
    for name, versions in entries.items():
        top = versions[0]
        if top.is_dir(follow_symlinks=False):
            inner.append(_directory(directory, name, versions))
        elif not _is_whiteout(top):
            _link(Path(top.path), directory.target / name, links)
        elif directory.image:
            os.mknod(directory.target / name, stat.S_IFCHR, os.makedev(0, 0))
    _copy_metadata(directory.own[0], directory.target)
    return inner


def _directory(parent: _Directory, name: str, versions: list[os.DirEntry[str]]) -> _Directory:
    target = parent.target / name
    target.mkdir()
    own, hidden = _visible([Path(version.path) for version in versions])
    image = [] if hidden else _visible([layer / name for layer in parent.image])[0]
    if hidden and parent.image:
        os.setxattr(target, _OPAQUE, b"y")
    return _Directory(target=target, own=own, image=image)


def _visible(versions: list[Path]) -> tuple[list[Path], bool]:
    """The directories, topmost first, whose union is seen, and whether something hides all that is below them."""
    seen: list[Path] = []
    for version in versions:
        try:
            mode = version.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not stat.S_ISDIR(mode):
            return seen, True
        seen.append(version)
        if _OPAQUE in os.listxattr(version) and os.getxattr(version, _OPAQUE) == b"y":
            return seen, True
    return seen, False


def _link(source: Path, target: Path, links: dict[tuple[int, int], Path]) -> None:
    """The same file under another name; across file systems a copy, in which links stay links."""
    about = source.lstat()
    identity = (about.st_dev, about.st_ino)
    try:
        os.link(links.get(identity, source), target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EMLINK):
            raise
        _copy(source, about, target)
        links[identity] = target


def _copy(source: Path, about: os.stat_result, target: Path) -> None:
    if stat.S_ISREG(about.st_mode):
        shutil.copyfile(source, target)
    elif stat.S_ISLNK(about.st_mode):
        target.symlink_to(source.readlink())
    else:
        os.mknod(target, about.st_mode, about.st_rdev)
    _copy_metadata(source, target)


def _copy_metadata(source: Path, target: Path) -> None:
    """Owner, mode, extended attributes and times. Owner first: changing it clears the set-id bits."""
    about = source.lstat()
    os.chown(target, about.st_uid, about.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(about.st_mode):
        target.chmod(stat.S_IMODE(about.st_mode))
        for key in os.listxattr(source):
            if not key.startswith(_NOTES) or key.startswith(_ESCAPED):
                os.setxattr(target, key, os.getxattr(source, key))
    os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns), follow_symlinks=False)


def _is_whiteout(entry: os.DirEntry[str]) -> bool:
    about = entry.stat(follow_symlinks=False)
    return stat.S_ISCHR(about.st_mode) and about.st_rdev == 0
