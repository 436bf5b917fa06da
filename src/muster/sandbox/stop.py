"""Why a command is ended before it answers, and waiting for one that may be."""

from __future__ import annotations

import asyncio
from enum import StrEnum

from muster import clock


class Stop(StrEnum):
    """Why a command was ended before it answered."""

    TIME = "time"
    SILENCE = "silence"
    DISK = "disk"  # its own limit: the model's doing, which it reads
    HOST_DISK = "host_disk"  # nobody's in there: the sandbox is given up

    @property
    def of_disk(self) -> bool:
        """Then whatever writes must end, background processes too."""
        return self in (Stop.DISK, Stop.HOST_DISK)


async def within(future: asyncio.Future[object], timeout_s: float) -> bool:
    """Whether `future` is done in time. Shield it if it must outlive the wait."""
    try:
        async with clock.timeout(max(0.0, timeout_s)):
            await future
    except TimeoutError:
        return False
    return True
