"""Host-side access to files that a model may have arranged: no path of the sandbox leads out of it.

Law: every open resolves inside a given root directory (`openat2` with RESOLVE_IN_ROOT), follows no magic link
and never blocks on a pipe or device. Removal and measuring go by directory entries and follow no link.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_IN_ROOT = 0x10
_INODE_BYTES = 1024  # what an empty file or directory counts; else a flood of them would be free

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_inside(root: Path, path: str, flags: int, *, mode: int = 0, follow: bool = True) -> int:
    """A descriptor of `path` as a process with `root` as its / would see it. Raises `OSError`.

    With `follow=False` a symbolic link anywhere on the path is an error (ELOOP).
    """
    resolve = _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS | (0 if follow else _RESOLVE_NO_SYMLINKS)
    how = _OpenHow(flags=flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode=mode, resolve=resolve)
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        size = ctypes.sizeof(how)
        fd = _libc.syscall(_OPENAT2, directory, path.encode(), ctypes.byref(how), ctypes.c_size_t(size))
    finally:
        os.close(directory)
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return fd


def read_inside(root: Path, path: str, *, limit_bytes: int | None = None, follow: bool = True) -> bytes:
    """The content of a regular file; at most `limit_bytes`. Raises `OSError` (EINVAL for what is no file)."""
    with open(open_inside(root, path, os.O_RDONLY, follow=follow), "rb", buffering=0) as file:
        _require_regular(file.fileno(), path)
        return file.read() if limit_bytes is None else file.read(limit_bytes)


def write_inside(root: Path, path: str, data: bytes) -> None:
    """Create or replace the content of a regular file; its directory must exist. Raises `OSError`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with open(open_inside(root, path, flags, mode=0o644), "wb") as file:
        _require_regular(file.fileno(), path)
        file.write(data)


def usage_bytes(directory: Path, *, stop_at: int | None = None) -> int:
    """Disk used below `directory`. Stops counting once over `stop_at`. Entries that vanish meanwhile count 0."""
    total = 0
    for size_bytes in _sizes(directory):
        total += size_bytes
        if stop_at is not None and total > stop_at:
            break
    return total


def usage_of_few_bytes(directory: Path, *, entries: int) -> int | None:
    """As `usage_bytes`, if no more than so many entries lie below; else None, after a look at as many."""
    sizes = list(islice(_sizes(directory), entries + 1))
    return sum(sizes) if len(sizes) <= entries else None


def plain_directory(layers: tuple[Path, ...], path: str) -> bool:
    """Whether `path`, seen through overlay `layers` (base first), is made of real directories or is missing.

    A link there would lead a mount somewhere else.
    """
    for depth in range(1, len(Path(path).parts)):
        inner = Path(*Path(path).parts[1 : depth + 1])
        for layer in reversed(layers):
            try:
                mode = (layer / inner).lstat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                continue
            if stat.S_ISCHR(mode):  # a whiteout: removed here, and lower layers do not count
                return True
            if not stat.S_ISDIR(mode):
                return False
            break
    return True


def remove_tree(directory: Path) -> None:
    """Remove all of it, however deep or protected. Missing is fine."""
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        if not directory.exists():
            return
    except (OSError, RecursionError):
        pass
    else:
        return
    # as an ordinary user: directories without permission; as anyone: deeper than Python recurses
    subprocess.run(["/bin/chmod", "-R", "u+rwX", directory], check=False, capture_output=True)
    subprocess.run(["/bin/rm", "-rf", "--", directory], check=False, capture_output=True)


def _sizes(directory: Path) -> Iterator[int]:
    """Of each entry below."""
    todo = [str(directory)]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                        yield _INODE_BYTES
                    else:
                        yield _INODE_BYTES + entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:  # removed meanwhile, or nested deeper than a path can say
            continue


def _require_regular(fd: int, path: str) -> None:
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        raise IsADirectoryError(errno.EISDIR, "is a directory", path)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
