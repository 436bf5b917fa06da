"""Limit of the pseudo-terminals of one sandbox. Law: one mount option, set from outside on the sandbox's own devpts.

The kernel counts the terminals of all instances together (kernel.pty.max, 4096 by default), so that one sandbox
could keep every other from starting. bubblewrap has no option for it; the superblock may be reconfigured through
any path that leads to it (fspick(2)).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

TERMINALS = 64
_FSPICK, _FSCONFIG = 433, 431  # the same numbers on every architecture
_AT_FDCWD = -100
_CLOEXEC = 1
_SET_STRING, _RECONFIGURE = 1, 7
# a reconfiguration sets what it does not name to the kernel's own defaults: the modes are bubblewrap's
_OPTIONS = {"mode": "620", "ptmxmode": "666", "max": str(TERMINALS)}

_libc = ctypes.CDLL(None, use_errno=True)


def limit_terminals(root: Path) -> bool:
    """In the sandbox whose / is `root`. False where the kernel does not let us, as it does not an ordinary user."""
    fd = _libc.syscall(_FSPICK, _AT_FDCWD, os.fsencode(root / "dev/pts"), _CLOEXEC)
    if fd < 0:
        return False
    try:
        for key, value in _OPTIONS.items():
            _libc.syscall(_FSCONFIG, fd, _SET_STRING, key.encode(), value.encode(), 0)
        return _libc.syscall(_FSCONFIG, fd, _RECONFIGURE, None, None, 0) == 0
    finally:
        os.close(fd)
