"""Emulated replicas in processes of their own, behind HTTP on loopback, in wall time.

    Orders, JSON on standard input ─► EmulatedEngine × n, each `serving` ─► their addresses, one JSON line
    serve(…) ─► HttpReplica × n ─► … ─► standard input ends ─► gone

Law: a process ends with its owner, however that ends. What a replica says is read from the prompt alone (`Replies`), so
that replicas share nothing, as servers do.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from pydantic import BaseModel, ConfigDict, Field

from muster import clock
from muster.engine.config import EmulatedEngineConfig
from muster.engine.http.replica import HttpReplica
from muster.errors import EngineError
from muster.lab.bench.ttb.real.words import Groups, Replies
from muster.lab.emulated.engine import EmulatedEngine
from muster.lab.emulated.serve import serving
from muster.lab.faults import INITIAL

START_TIMEOUT_S = 60.0


class Orders(BaseModel):
    """Orders of a process: what it serves, and what it says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...] = Field(description="of the replicas in this process")
    engine: EmulatedEngineConfig = Field(description="each of them")
    groups: Groups = Field(description="the programs that are replayed")


@asynccontextmanager
async def serve(
    names: Sequence[str], engine: EmulatedEngineConfig, groups: Groups, *, processes: int
) -> AsyncGenerator[list[HttpReplica]]:
    """Replicas of these names, spread over so many processes. Raises `EngineError` when one does not start."""
    async with AsyncExitStack() as stack:
        shares = [tuple(names[k::processes]) for k in range(min(processes, len(names)))]
        started = [
            await stack.enter_async_context(_process(Orders(names=share, engine=engine, groups=groups)))
            for share in shares
        ]
        urls = dict[str, str]()
        for process in started:
            urls |= await _addresses(process)
        yield [await stack.enter_async_context(HttpReplica(name, urls[name])) for name in names]


@asynccontextmanager
async def _process(orders: Orders) -> AsyncGenerator[Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__),
        stdin=PIPE,
        stdout=PIPE,
        process_group=0,  # an interrupt at the terminal is for the owner to handle
    )
    try:
        assert process.stdin is not None
        process.stdin.write(orders.model_dump_json().encode() + b"\n")
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _addresses(process: Process) -> dict[str, str]:
    assert process.stdout is not None
    try:
        async with clock.timeout(START_TIMEOUT_S):
            line = await process.stdout.readline()
    except TimeoutError:
        raise EngineError(f"an emulated engine did not start within {START_TIMEOUT_S:g} s") from None
    if not line:
        raise EngineError("an emulated engine ended while starting; its last words are above")
    return json.loads(line)


async def _main(orders: Orders, owner: asyncio.StreamReader) -> None:
    policy = Replies(orders.groups)
    async with AsyncExitStack() as stack:
        urls = {
            name: await stack.enter_async_context(
                serving(EmulatedEngine(orders.engine, name=name, version=INITIAL, policy=policy))
            )
            for name in orders.names
        }
        sys.stdout.write(json.dumps(urls) + "\n")
        sys.stdout.flush()
        await owner.read()  # ends with the owner


async def _started() -> None:
    owner = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(owner), sys.stdin)
    await _main(Orders.model_validate_json(await owner.readline()), owner)


if __name__ == "__main__":
    clock.run(_started())
