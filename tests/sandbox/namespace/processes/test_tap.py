from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

from muster import clock
from muster.sandbox.namespace.processes.tap import Tap

PIPE_BYTES = 65_536


def on_pipes(body: Callable[[Tap, int, int], Awaitable[None]], cap_bytes: int = 1000) -> None:
    """`body(tap, first, second)` gets the writing ends of two pipes that the tap reads."""

    async def main() -> None:
        tap = Tap(cap_bytes)
        (one_out, one), (two_out, two) = os.pipe(), os.pipe()
        tap.add(one_out)
        tap.add(two_out)
        os.set_blocking(one, False)
        await body(tap, one, two)
        tap.close()
        for fd in (one, two):
            os.close(fd)

    clock.run(main())


async def write_all(fd: int, total_bytes: int) -> None:
    """As a process would that waits for room in the pipe. Fails when nobody makes room."""
    left = total_bytes
    async with clock.timeout(10):
        while left:
            try:
                left -= os.write(fd, b"x" * min(left, PIPE_BYTES))
            except BlockingIOError:
                await clock.sleep(0)


def test_a_take_has_what_came_from_all_sources_and_the_next_what_came_since() -> None:
    async def body(tap: Tap, one: int, two: int) -> None:
        os.write(one, b"one ")
        assert tap.take().text() == "one "
        os.write(one, b"two ")
        await clock.sleep(0)
        os.write(two, b"three")
        assert tap.take().text() == "two three"
        assert tap.take().text() == ""

    on_pipes(body)


def test_a_writer_goes_on_while_nobody_takes() -> None:
    async def body(tap: Tap, one: int, two: int) -> None:
        await write_all(one, 20 * PIPE_BYTES)
        assert tap.take().total_bytes == 20 * PIPE_BYTES

    on_pipes(body)


def test_a_flood_is_read_to_its_end_within_the_cap() -> None:
    async def body(tap: Tap, one: int, two: int) -> None:
        tap.begin()
        await write_all(one, 30_000_000)
        sink = tap.take()
        assert sink.total_bytes == 30_000_000
        assert len(sink.text()) < 1100

    on_pipes(body)


def test_a_source_that_ends_is_closed_and_the_others_go_on() -> None:
    async def body(tap: Tap, one: int, two: int) -> None:
        extra_out, extra = os.pipe()
        tap.add(extra_out)
        os.write(extra, b"last words")
        os.close(extra)
        await clock.sleep(0.01)
        os.write(one, b"; more")
        assert tap.take().text() == "last words; more"

    on_pipes(body)


def test_it_knows_when_something_last_came() -> None:
    async def body(tap: Tap, one: int, two: int) -> None:
        tap.begin()
        began_s = tap.last_s
        await clock.sleep(0.02)
        assert tap.last_s == began_s
        os.write(two, b"x")
        await clock.sleep(0.01)
        assert tap.last_s > began_s

    on_pipes(body)
