"""The disk that a sandbox's commands fill, measured while they run and after them.

    a command runs ──poll_s──► look ─┬─ usage ─► over the limit, and more than before ─► Stop.DISK
    it ended ──could it have? ──► ran ┘  the host's own free disk ─► Stop.HOST_DISK

Law: says why a command must end; ends nothing. When to measure is decided by `disk`.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from muster import clock
from muster.sandbox.command import Stop
from muster.sandbox.disk import DiskBudget

Usage = Callable[[int | None], Awaitable[int]]
"""Bytes used of what a sandbox may write; counting may end soon after the limit that is given."""


class DiskWatch:
    """Of one writable layer. `host_directory`: on the file system of which `free_disk_bytes` must stay free."""

    def __init__(self, usage: Usage, *, limit_bytes: int | None, host_directory: Path, free_disk_bytes: int) -> None:
        self._usage = usage
        self._budget = DiskBudget(limit_bytes)
        self._host_directory = host_directory
        self._free_disk_bytes = free_disk_bytes
        self._measured = -math.inf

    @property
    def used_bytes(self) -> int:
        """As of the last measurement."""
        return self._budget.used_bytes

    @property
    def message(self) -> str:
        """Message for a model that reached its disk limit."""
        return self._budget.message

    def poll_s(self) -> float | None:
        """Seconds until the limit could be passed. None: never."""
        return self._budget.poll_s

    async def look(self) -> Stop | None:
        self._measured = clock.now()
        if self._budget.measured(await self._usage(self._budget.limit_bytes)):
            return Stop.DISK
        with suppress(FileNotFoundError):  # removed from outside, which shows elsewhere
            if shutil.disk_usage(self._host_directory).free < self._free_disk_bytes:
                return Stop.HOST_DISK
        return None

    async def ran(self, duration_s: float) -> Stop | None:
        """After a command that ended by itself: did it pass the disk limit since the last measurement?"""
        unmeasured_s = min(duration_s, clock.now() - self._measured)
        return await self.look() if self._budget.ran(unmeasured_s) else None
