"""Is a sandbox at rest: are its files and the state of its main shell all of it? Law: reads, from outside.

processes beside the shell │ files that the shell holds open │ shared memory, files in /dev ─► not at rest
"""

from __future__ import annotations

import os
from pathlib import Path

from muster.sandbox.files import open_inside
from muster.sandbox.namespace.isolation import bubblewrap

_SHELL_FDS = frozenset(map(str, (0, 1, 2, 41, 42, 43, 255)))  # ours (see `session`), and bash's own terminal
_DEVICES = frozenset((*bubblewrap.DEVICES, "core", "fd", "ptmx", "pts", "shm", "stderr", "stdin", "stdout"))


def holds_nothing(root: Path, shell_pid: int) -> bool:
    """Whether nothing is held in memory alone: by the shell, or under /dev. In doubt it is."""
    try:
        open_fds = frozenset(os.listdir(f"/proc/{shell_pid}/fd"))  # noqa: PTH208  (links, not files)
        devices, shared = _names(root, "/dev"), _names(root, "/dev/shm")
    except OSError:
        return False
    return open_fds <= _SHELL_FDS and devices <= _DEVICES and not shared


def _names(root: Path, path: str) -> frozenset[str]:
    fd = open_inside(root, path, os.O_RDONLY | os.O_DIRECTORY, follow=False)
    try:
        return frozenset(os.listdir(fd))  # noqa: PTH208  (a descriptor)
    finally:
        os.close(fd)
