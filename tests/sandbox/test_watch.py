"""Measuring of the writable layer: when, and how."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from muster import clock
from muster.sandbox.command import Answer, Stop, answered
from muster.sandbox.disk import WRITE_BYTES_PER_S
from muster.sandbox.files import usage_bytes, usage_of_few_bytes
from muster.sandbox.namespace.storage.quota import writable_bytes
from muster.sandbox.namespace.storage.state import Layer
from muster.sandbox.watch import DiskWatch

LIMIT_S = 0.5  # of writing, at the most
LIMIT_BYTES = int(LIMIT_S * WRITE_BYTES_PER_S)


def over_a_layer(directory: Path, body: Callable[[DiskWatch, Layer], Awaitable[None]]) -> None:
    """On the virtual clock, where no thread can answer."""
    layer = Layer(root=directory / "layer")
    layer.fs.mkdir(parents=True)
    watch = DiskWatch(
        lambda stop_at: writable_bytes(layer, (), stop_at=stop_at),
        limit_bytes=LIMIT_BYTES,
        host_directory=directory,
        free_disk_bytes=0,
    )

    async def main() -> None:
        await body(watch, layer)

    clock.run_virtual(main())


async def command(watch: DiskWatch, duration_s: float) -> Stop | None:
    """One that ends by itself after so long."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer | None] = loop.create_future()
    loop.call_later(duration_s, answer.set_result, None)
    stop = await answered(answer, 60.0, None, clock.now, look_s=watch.poll_s, look=watch.look)
    return stop or await watch.ran(duration_s)


def test_what_was_measured_while_a_command_ran_is_not_measured_again_at_its_end(tmp_path: Path) -> None:
    async def body(watch: DiskWatch, layer: Layer) -> None:
        await command(watch, 0.4 * LIMIT_S)
        assert watch.used_bytes == 0
        await command(watch, 1.5 * LIMIT_S)
        before = watch.used_bytes
        assert before > 0
        (layer.fs / "file").write_bytes(b"x" * 100_000)
        await command(watch, 0.4 * LIMIT_S)
        assert watch.used_bytes == before
        await command(watch, 0.4 * LIMIT_S)
        assert watch.used_bytes > before

    over_a_layer(tmp_path, body)


def test_few_entries_count_as_the_whole_walk_does_and_many_are_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_bytes(b"x" * 10_000)
    assert usage_of_few_bytes(tmp_path, entries=3) == usage_bytes(tmp_path) >= 10_000
    assert usage_of_few_bytes(tmp_path, entries=2) is None
    assert usage_of_few_bytes(tmp_path / "missing", entries=2) == usage_bytes(tmp_path / "missing") == 0


def test_counting_ends_soon_after_the_limit(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / str(number)).write_bytes(b"x")
    whole = usage_bytes(tmp_path)
    assert 20_000 < usage_bytes(tmp_path, stop_at=20_000) < whole
