"""Unpacking tar archives that others made. Law: nothing is written outside of the target directory, whatever the names
and links in the archive say, for every step of every path is resolved by the kernel inside of it (`open_inside`).

    member ─► its directory, opened inside of the target ─► made there by name, following no link
    .wh.NAME ─► a whiteout        .wh..wh..opq ─► an opaque directory        (layers of an image alone)

As root, owners and all mode bits are kept; an ordinary user owns all. Device nodes are left out: a sandbox has its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Generator
from pathlib import Path, PurePosixPath
from typing import IO

from muster.errors import ImageError
from muster.sandbox.files import open_inside
from muster.sandbox.namespace.build.tree import OPAQUE

_WHITEOUT = ".wh."
_OPAQUE_MARK = ".wh..wh..opq"
_CAPABILITY = "SCHILY.xattr.security.capability"
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
_CHUNK_BYTES = 1024 * 1024


@contextlib.contextmanager
def open_tar(source: Path | IO[bytes], what: str) -> Generator[tarfile.TarFile]:
    """Plain or compressed (gzip, bzip2, xz; zstd where the `zstd` program is). Raises `ImageError` for all else."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(source.open("rb")) if isinstance(source, Path) else source
            magic = file.read(4)
            file.seek(0)
            if magic == _ZSTANDARD:
                file = stack.enter_context(_unzstd(file, what))
            yield stack.enter_context(tarfile.open(fileobj=file, mode="r:*"))
        except (tarfile.TarError, EOFError, OSError) as error:
            raise ImageError(f"{what}: cannot be unpacked: {error}") from error


@contextlib.contextmanager
def _unzstd(file: IO[bytes], what: str) -> Generator[IO[bytes]]:
    program = shutil.which("zstd")
    if program is None:
        raise ImageError(f"{what}: is compressed with zstd: install the zstd program, or unpack it first")
    with tempfile.TemporaryFile() as plain:
        with subprocess.Popen([program, "-dcq"], stdin=subprocess.PIPE, stdout=plain) as process:
            assert process.stdin is not None
            shutil.copyfileobj(file, process.stdin)
        plain.seek(0)
        yield plain


class Unpacker:
    """Unpacks archives into `root`.

    `whiteouts`: the archive is a layer of an image, whose marks of removal become those of an overlay.
    """

    def __init__(self, root: Path, *, whiteouts: bool = False) -> None:
        self._root = root
        self._whiteouts = whiteouts
        self._directories: dict[PurePosixPath, tarfile.TarInfo] = {}
        self._open: tuple[PurePosixPath, int] | None = None  # the directory of the last member; most share it

    def unpack(self, tar: tarfile.TarFile) -> None:
        """Raises `OSError` and `tarfile.TarError`."""
        try:
            for member in tar:
                path = PurePosixPath("/", *(p for p in member.name.split("/") if p not in ("", ".", "..")))
                if path.name.startswith(_WHITEOUT) and self._whiteouts:
                    self._hide(path)
                elif member.isdir():
                    self._directory(path)
                    self._directories[path] = member
                else:
                    self._make(tar, member, path)
            self._finish()
        finally:
            self._close()

    def _make(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: PurePosixPath) -> None:
        if not (member.isreg() or member.issym() or member.islnk() or member.isfifo()):
            return
        parent = self._directory(path.parent)
        _remove(path.name, parent)
        if member.islnk():
            self._link(member, path.name, parent)
        elif member.issym():
            os.symlink(member.linkname, path.name, dir_fd=parent)
            _set_link_metadata(member, path.name, parent)
        elif member.isfifo():
            os.mkfifo(path.name, dir_fd=parent)
            _set_metadata(member, path.name, parent, os.O_RDONLY | os.O_NONBLOCK)
        else:
            self._write(tar, member, path.name, parent)

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str, parent: int) -> None:
        content = tar.extractfile(member)
        assert content is not None, member.name
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=parent)
        with os.fdopen(fd, "wb") as file:
            shutil.copyfileobj(content, file, _CHUNK_BYTES)
        _set_metadata(member, name, parent, os.O_WRONLY)

    def _link(self, member: tarfile.TarInfo, name: str, parent: int) -> None:
        target = PurePosixPath("/", *(p for p in member.linkname.split("/") if p not in ("", ".", "..")))
        fd = open_inside(self._root, str(target.parent), _DIRECTORY)
        try:
            os.link(target.name, name, src_dir_fd=fd, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(fd)

    def _hide(self, path: PurePosixPath) -> None:
        parent = self._directory(path.parent)
        if path.name == _OPAQUE_MARK:
            os.setxattr(f"/proc/self/fd/{parent}", OPAQUE, b"y")
            return
        name = path.name.removeprefix(_WHITEOUT)
        _remove(name, parent)
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)

    def _directory(self, path: PurePosixPath) -> int:
        """A descriptor of that directory, made with all above it where missing; ours to close."""
        if self._open is not None and self._open[0] == path:
            return self._open[1]
        try:
            fd = open_inside(self._root, str(path), _DIRECTORY)
        except (FileNotFoundError, NotADirectoryError):
            parent = self._directory(path.parent)
            _remove(path.name, parent)
            os.mkdir(path.name, 0o755, dir_fd=parent)
            fd = open_inside(self._root, str(path), _DIRECTORY)
        self._close()
        self._open = (path, fd)
        return fd

    def _close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _finish(self) -> None:
        """Directories last, the deepest first: one without permissions would keep an ordinary user out."""
        for path, member in sorted(self._directories.items(), reverse=True):
            parent = self._directory(path.parent)
            with contextlib.suppress(NotADirectoryError):  # a later member took its place
                _set_metadata(member, path.name or ".", parent, _DIRECTORY)


def _set_metadata(member: tarfile.TarInfo, name: str, parent: int, flags: int) -> None:
    """Owner, then mode and capabilities (a change of owner clears them), then times. Never of what a link leads to."""
    fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=parent)
    try:
        if os.geteuid() == 0:
            os.fchown(fd, member.uid, member.gid)
        os.fchmod(fd, member.mode & 0o7777)
        if (capability := member.pax_headers.get(_CAPABILITY)) is not None:
            with contextlib.suppress(PermissionError):
                os.setxattr(fd, "security.capability", capability.encode("utf-8", "surrogateescape"))
        os.utime(fd, (member.mtime, member.mtime))
    finally:
        os.close(fd)


def _set_link_metadata(member: tarfile.TarInfo, name: str, parent: int) -> None:
    if os.geteuid() == 0:
        os.chown(name, member.uid, member.gid, dir_fd=parent, follow_symlinks=False)
    os.utime(name, (member.mtime, member.mtime), dir_fd=parent, follow_symlinks=False)


def _remove(name: str, parent: int) -> None:
    """Remove what an earlier member made there."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(name, dir_fd=parent)
