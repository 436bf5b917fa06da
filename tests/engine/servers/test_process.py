"""A child server: readiness, last words, and that it never outlives us."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable
from pathlib import Path

import pytest

from muster import clock
from muster.engine.servers.process import spawn
from muster.errors import EngineError

ENV = dict(os.environ)
FOREVER = "while sleep 60; do :; done"


def run(body: Awaitable[None]) -> None:
    async def main() -> None:
        async with clock.timeout(20):
            await body

    clock.run(main())


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def alive(pid: int) -> bool:
    """Whether it runs: one that ended and waits to be reaped by its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pid: int) -> None:
    while alive(pid):
        await clock.sleep(0.01)


def test_its_first_line_is_its_word_that_it_is_ready_and_what_follows_never_blocks_it() -> None:
    async def body() -> None:
        words = (
            "echo ready; i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789; i=$((i+1)); done"
        )
        async with spawn(sh(f"{words}; echo last >&2"), name="s", env=ENV) as server:
            assert await server.first_line(10) == "ready"
            assert (await server.ended()).endswith("last")

    run(body())


def test_all_it_says_is_appended_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "s.log"

    async def body() -> None:
        for _ in range(2):
            async with spawn(sh("echo ready; echo loading >&2; exit 3"), name="s", env=ENV, log=log) as server:
                await server.ended()

    run(body())
    assert sorted(log.read_text().split()) == ["loading"] * 2 + ["ready"] * 2


def test_one_that_ends_while_starting_is_an_error_with_its_own_words() -> None:
    async def body() -> None:
        async with spawn(sh("echo no such model >&2; exit 3"), name="s", env=ENV) as server:
            with pytest.raises(EngineError, match=r"s: ended while starting: its process ended with 3: no such model"):
                await server.first_line(10)

    run(body())


def test_one_that_never_gets_ready_has_a_deadline() -> None:
    async def never() -> bool:
        return False

    async def body() -> None:
        async with spawn(sh(f"echo loading >&2; {FOREVER}"), name="s", env=ENV) as server:
            with pytest.raises(EngineError, match=r"not ready within 0.5 s: loading"):
                await server.ready_when(never, 0.5, every_s=0.01)

    run(body())


def test_it_is_asked_until_it_is_ready() -> None:
    asked: list[int] = []

    async def third() -> bool:
        asked.append(1)
        return len(asked) == 3

    async def body() -> None:
        async with spawn(sh(FOREVER), name="s", env=ENV) as server:
            await server.ready_when(third, 10, every_s=0.01)

    run(body())
    assert len(asked) == 3


def test_it_ends_with_the_block_and_its_children_too() -> None:
    async def body() -> None:
        async with spawn(sh(f"sleep 600 & echo $!; {FOREVER}"), name="s", env=ENV) as server:
            child = int(await server.first_line(10))
            assert alive(child)
        await gone(child)
        await gone(server.pid)

    run(body())


def test_with_grace_it_may_end_by_itself() -> None:
    async def body() -> None:
        script = f"trap 'echo tidied >&2; exit 0' TERM; echo ready; {FOREVER.replace('60', '0.05')}"
        async with spawn(sh(script), name="s", env=ENV, grace_s=10) as server:
            await server.first_line(10)
        assert server.last_output == "tidied"

    run(body())


def test_who_waits_for_its_end_is_told_only_when_it_ends_by_itself() -> None:
    async def body() -> None:
        heard: list[str] = []
        async with spawn(sh("echo ready; exit 4"), name="s", env=ENV) as server:
            server.on_end(heard.append)
            await server.ended()
            await clock.sleep(0)
        assert heard == ["its process ended with 4: it said nothing"] or len(heard) == 1
        async with spawn(sh(FOREVER), name="s", env=ENV) as server:
            server.on_end(heard.append)
        assert len(heard) == 1

    run(body())


def test_it_ends_when_its_owner_is_killed() -> None:
    owner = """
import asyncio, os, sys
from muster.engine.servers.process import spawn
async def main():
    async with spawn(["/bin/sh", "-c", "sleep 600 & echo $$ $!; wait"], name="s", env=dict(os.environ)) as server:
        print(await server.first_line(20), flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    process.kill()
    process.communicate()

    async def body() -> None:
        for pid in pids:
            await gone(pid)

    run(body())
    assert len(pids) == 2
