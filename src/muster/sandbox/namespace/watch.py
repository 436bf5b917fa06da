"""Waiting for a command under its limits. Law: says why a command must end; ends nothing.

answer ─┬─ in time ─► None
        └─ timeout_s, silence_s, the disk limit, the host's own free disk ─► Stop
"""

from __future__ import annotations

import asyncio
import math
import shutil
from pathlib import Path

from muster import clock
from muster.sandbox.disk import DiskBudget
from muster.sandbox.files import usage_bytes
from muster.sandbox.namespace.processes.session import Answer
from muster.sandbox.namespace.processes.tap import Tap
from muster.sandbox.namespace.storage.quota import used_at_once_bytes, used_bytes
from muster.sandbox.namespace.storage.state import Layer
from muster.sandbox.stop import Stop, within


class Watch:
    """Over one writable layer and the writable mounts beside it.

    `host_directory`: on the file system of which `free_disk_bytes` must stay free.
    """

    def __init__(
        self,
        upper: Layer,
        *,
        limit_bytes: int | None,
        mounts: tuple[Path, ...],
        host_directory: Path,
        free_disk_bytes: int,
    ) -> None:
        self._upper = upper
        self._budget = DiskBudget(limit_bytes)
        self._mounts = mounts
        self._host_directory = host_directory
        self._free_disk_bytes = free_disk_bytes
        self._measured = -math.inf

    @property
    def disk_bytes(self) -> int:
        """As of the last measurement."""
        return self._budget.used_bytes

    async def until(
        self, answer: asyncio.Future[Answer | None], *, tap: Tap, timeout_s: float, silence_s: float | None
    ) -> Stop | None:
        """Wait for the answer; say why it must end earlier."""
        deadline = clock.now() + timeout_s
        while True:
            quiet = deadline if silence_s is None else tap.last_s + silence_s
            poll_s = self._budget.poll_s
            left_s = min(deadline, quiet) - clock.now()
            if await within(asyncio.shield(answer), left_s if poll_s is None else min(left_s, poll_s)):
                return None
            if clock.now() >= deadline:
                return Stop.TIME
            if silence_s is not None and clock.now() >= tap.last_s + silence_s:
                return Stop.SILENCE
            stop = await self._measure()
            if stop is not None:
                return stop

    async def ran(self, duration_s: float) -> Stop | None:
        """After a command that ended by itself: did it pass the disk limit since the last measurement?"""
        unmeasured_s = min(duration_s, clock.now() - self._measured)
        return await self._measure() if self._budget.ran(unmeasured_s) else None

    @property
    def message(self) -> str:
        """What the model reads when it reached its disk limit."""
        return self._budget.message

    async def _measure(self) -> Stop | None:
        limit = self._budget.limit_bytes
        if limit is None:
            return None
        self._measured = clock.now()
        used = used_at_once_bytes(self._upper)
        if used is None:
            used = await asyncio.to_thread(used_bytes, self._upper, stop_at=limit)
        used += sum([await asyncio.to_thread(usage_bytes, place, stop_at=limit) for place in self._mounts])
        if self._budget.measured(used):
            return Stop.DISK
        free = shutil.disk_usage(self._host_directory).free
        return Stop.HOST_DISK if free < self._free_disk_bytes else None
