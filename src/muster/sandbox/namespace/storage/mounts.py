"""Mounting and unmounting on the host. Law: two system calls, and nothing here knows what they are for."""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path

_MS_NOATIME = 1024
_MNT_DETACH = 2
_GONE = (errno.EINVAL, errno.ENOENT)  # not mounted any more
_libc = ctypes.CDLL(None, use_errno=True)


def mount(device: str, directory: Path, kind: str, options: str) -> None:
    """Mount a device's file system of that `kind` on `directory`. Raises `OSError`."""
    if _libc.mount(device.encode(), os.fsencode(directory), kind.encode(), _MS_NOATIME, options.encode()) != 0:
        raise _error(directory)


def unmount_below(directory: Path) -> int:
    """Unmount everything on and below `directory`, the deepest first. Returns how many. Raises `OSError`."""
    places = _mounts_below(directory)
    for place in sorted(places, reverse=True):
        unmount(place)
    return len(places)


def unmount(place: Path) -> None:
    """Take off what is mounted there, if anything is. Raises `OSError`."""
    # detached: whoever still has a file open there must not hold up the rest
    if _libc.umount2(os.fsencode(place), _MNT_DETACH) != 0:
        error = _error(place)
        if error.errno not in _GONE:
            raise error


def _mounts_below(directory: Path) -> list[Path]:
    top = directory.resolve()
    found: list[Path] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        text = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), line.split(" ")[4])
        if Path(text).is_relative_to(top):
            found.append(Path(text))
    return found


def _error(path: Path) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code), str(path))
