"""A command from its start to its result, as every backend promises it.

    begun ─► answered: the shell's Answer is there │ timeout_s, silence_s, what a look finds ─► Stop
                                                                                 │ the backend ends it
    Result ◄─ result ◄──────────────────────────────────────────────────────────┘

Law: waits and decides; ends nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from muster import clock
from muster.sandbox.output import HeadTail
from muster.sandbox.port import Counters, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A shell finished a script: its exit code, and what it wrote to the descriptor of answers."""

    exit_code: int
    payload: bytes


class Stop(StrEnum):
    """Reason for which a command was ended before it answered."""

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


async def answered(
    answer: asyncio.Future[Answer | None],
    timeout_s: float,
    silence_s: float | None,
    heard_s: Callable[[], float],
    *,
    look_s: Callable[[], float | None],
    look: Callable[[], Awaitable[Stop | None]],
) -> Stop | None:
    """Wait for the answer (of None the shell ended); say why the command must end earlier.

    `heard_s`: when it last wrote something. `look` is done after `look_s` each time, and may find a reason of its own.
    """
    deadline = clock.now() + timeout_s
    while True:
        quiet = deadline if silence_s is None else heard_s() + silence_s
        left_s, pause_s = min(deadline, quiet) - clock.now(), look_s()
        if await within(asyncio.shield(answer), left_s if pause_s is None else min(left_s, pause_s)):
            return None
        if clock.now() >= deadline:
            return Stop.TIME
        if silence_s is not None and clock.now() >= heard_s() + silence_s:
            return Stop.SILENCE
        if (stop := await look()) is not None:
            return stop


def result(
    sink: HeadTail,
    *,
    exit_code: int | None,
    stop: Stop | None,
    disk_message: str,
    duration_s: float,
    shell_restarted: bool,
    counters: Counters,
) -> Result:
    """The result of a command. `exit_code`: None for one that was ended. `disk_message`: told at the disk limit."""
    return Result(
        output=sink.text() + (disk_message if stop is Stop.DISK else ""),
        exit_code=exit_code,
        duration_s=duration_s,
        timed_out=stop in (Stop.TIME, Stop.SILENCE),
        silent=stop is Stop.SILENCE,
        out_of_memory=bool(counters.oom_kills) and exit_code != 0,
        shell_restarted=shell_restarted,
        omitted_bytes=sink.omitted_bytes,
        counters=counters,
    )
