"""Device nodes that belong to one sandbox at a time, because root in it may change their modes.

    take ─► a directory of nodes, fresh or given back by a sandbox that ended ─► give

Law: what is taken has the modes and owners of a new one. Nodes are kept, since making them costs more than looking.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import stat
from pathlib import Path

from muster.sandbox.namespace.isolation.bubblewrap import DEVICES
from muster.sandbox.namespace.processes.supervisor import Exit

_MODE = 0o666


class DeviceNodes:
    """Device nodes below `directory`, on a file system on which nodes work."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        self._spare: list[Path] = []

    def take(self) -> Path | None:
        """None for an ordinary user: the host's own nodes serve, whose modes nobody in a sandbox can change."""
        if os.geteuid() != 0:
            return None
        if self._spare:
            directory = self._spare.pop()
            for name in DEVICES:
                _restore(directory / name)
            return directory
        directory = self._directory / str(next(self._numbers))
        directory.mkdir(parents=True)
        for name, (major, minor) in DEVICES.items():
            os.mknod(directory / name, stat.S_IFCHR | _MODE, os.makedev(major, minor))
            _restore(directory / name)  # whatever our umask
        return directory

    def give(self, directory: Path, *, after: asyncio.Future[Exit] | None) -> None:
        """Back, once every process of its sandbox is dead."""
        if after is None:
            self._spare.append(directory)
        else:
            after.add_done_callback(lambda _: self._spare.append(directory))


def _restore(node: Path) -> None:
    found = node.stat()
    if stat.S_IMODE(found.st_mode) != _MODE or (found.st_uid, found.st_gid) != (0, 0):
        os.chown(node, 0, 0)
        node.chmod(_MODE)
