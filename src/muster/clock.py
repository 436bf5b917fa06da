"""Time belongs to the loop.

Law: this is the only file that touches `time`. In production `now()` is seconds since the epoch, steady within
a process and comparable between processes; on a virtual loop it starts at 0 and jumps to the next timer
whenever nothing is ready to run, so that a simulated hour takes milliseconds and the same seed gives the same
order of events.

    run(main())          real time
    run_virtual(main())  virtual time: no file descriptor is ever polled, no thread can wake the loop
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_EPOCH_OFFSET = time.time() - time.monotonic()


class Deadlock(RuntimeError):
    """On a virtual loop: every task waits and no timer is set, so time can never move again."""


def now() -> float:
    """Seconds. On the epoch in production; from 0 on a virtual loop. Usable without a loop (then real)."""
    loop = _running_loop()
    if isinstance(loop, VirtualLoop):
        return loop.time()
    return time.monotonic() + _EPOCH_OFFSET


async def sleep(delay_s: float) -> None:
    await asyncio.sleep(delay_s)


def timeout(delay_s: float | None) -> asyncio.Timeout:
    """`async with timeout(5): ...` raises `TimeoutError` when the body takes longer. None: no limit."""
    return asyncio.timeout(delay_s)


def block(delay_s: float) -> None:
    """Sleep in a thread that has no loop (an engine's or a benchmark's own). Never call it from async code."""
    time.sleep(delay_s)


def cpu_s() -> float:
    """CPU time of this process, in seconds; benchmarks of the control plane read it."""
    return time.process_time()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in real time on a fresh loop."""
    return asyncio.run(main)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` on a fresh virtual loop. Raises `Deadlock` if it can never end."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting for `timeout` seconds it moves the virtual clock by them."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits and no timer is set")
        self.time += max(0.0, timeout)
        return []


class _NumberedTask(asyncio.Task[Any]):
    """Hashes by its number: a set of tasks, such as a TaskGroup cancels, has the same order in every process."""

    def __init__(self, coro: Coroutine[Any, Any, Any], number: int, **options: Any) -> None:
        self._number = number  # the loop's own set of tasks asks for it at once
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a number. Timers fire in order; I/O and threads do not exist."""

    def __init__(self) -> None:
        self._jumper = _JumpingSelector()
        super().__init__(self._jumper)
        self._tasks_made = itertools.count()
        self.set_task_factory(self._numbered)
        # the loop rounds timers to this; a float that grows large must still move
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._jumper.time

    def _numbered(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return _NumberedTask(coro, next(self._tasks_made), loop=loop, **options)
