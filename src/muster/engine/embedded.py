"""Starts the embedded engine in a process of its own and hands out a replica.

Law: the process ends with the `async with`, or with this process if that is killed (its standard input ends).
If it dies before, calls in flight fail at once and carry its last words.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from muster import clock
from muster.engine.config import EmbeddedEngineConfig
from muster.engine.vllm import HttpReplica
from muster.errors import EngineError

__all__ = ["EmbeddedEngineConfig", "launch"]

_TOKEN_VARIABLE = "MUSTER_ENGINE_TOKEN"
_LAST_LINES = 20
_ENVIRONMENT = {
    # keep freed tensors in the process: returned pages would be faulted in again at every step
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 31),
    # wait at a barrier for microseconds, then sleep: with the default, threads that spin for milliseconds beside
    # a trainer or a sandbox slow each other down tenfold
    "GOMP_SPINCOUNT": "2000",
}


@asynccontextmanager
async def launch(
    config: EmbeddedEngineConfig, model_dir: Path, name: str, *, version: int = 0
) -> AsyncIterator[HttpReplica]:
    """Start an engine on a free loopback port and yield a replica that is ready.

    version: number of the weights in `model_dir`. Raises `EngineError` with the process's own error text
    when it does not get ready within `config.start_timeout_s`.
    """
    token = secrets.token_hex(16)
    process = await asyncio.create_subprocess_exec(
        *_command(config, model_dir, name, version),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env={**_ENVIRONMENT, **os.environ, _TOKEN_VARIABLE: token},
        process_group=0,  # an interrupt at the terminal is for us to handle
    )
    words: deque[str] = deque(maxlen=_LAST_LINES)
    listener = asyncio.create_task(_listen(process, words))
    try:
        url = await _ready(process, config.start_timeout_s, name, words, listener)
        async with HttpReplica(
            name,
            url,
            token,
            request_timeout_s=config.request_timeout_s,
            control_timeout_s=config.control_timeout_s,
        ) as replica:
            watcher = asyncio.create_task(_watch(process, replica, words, listener))
            try:
                yield replica
            finally:
                watcher.cancel()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        listener.cancel()


def _command(config: EmbeddedEngineConfig, model_dir: Path, name: str, version: int) -> list[str]:
    command = [sys.executable, "-m", "muster.engine.serve", "--model", str(model_dir), "--name", name]
    command += ["--version-number", str(version)]
    for field, value in config.model_dump(exclude={"replicas"}).items():
        command += [f"--{field.replace('_', '-')}", str(value)]
    return command


async def _ready(process: Process, timeout_s: float, name: str, words: deque[str], listener: asyncio.Task[None]) -> str:
    assert process.stdout is not None
    try:
        async with clock.timeout(timeout_s):
            line = await process.stdout.readline()
    except TimeoutError:
        raise EngineError(f"{name}: not ready within {timeout_s:g} s: {_tail(words)}") from None
    if not line:
        await listener
        raise EngineError(f"{name}: ended while starting: {_tail(words)}")
    return str(json.loads(line)["url"])


async def _watch(process: Process, replica: HttpReplica, words: deque[str], listener: asyncio.Task[None]) -> None:
    code = await process.wait()
    replica.pronounce_dead(f"its process ended with {code}: {_tail(words)}")
    await asyncio.shield(listener)
    replica.pronounce_dead(f"its process ended with {code}: {_tail(words)}")


async def _listen(process: Process, words: deque[str]) -> None:
    """Keep the last lines of the process's error output."""
    assert process.stderr is not None
    while line := await process.stderr.readline():
        words.append(line.decode(errors="replace").rstrip())


def _tail(words: deque[str]) -> str:
    return " | ".join(words) or "it said nothing"
