"""Starts the embedded engine in a process of its own and hands out a replica.

Law: the process ends with the `async with`, or with this process if that is killed. If it dies before, calls in flight
fail at once and carry its last words.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from muster.engine.config import EmbeddedEngineConfig
from muster.engine.http.replica import HttpReplica
from muster.engine.http.wire import TOKEN_VARIABLE
from muster.engine.servers.process import ServerProcess
from muster.engine.servers.started import started

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
    config: EmbeddedEngineConfig,
    model_dir: Path,
    name: str,
    *,
    version: int = 0,
    on_end: Callable[[str], None] = lambda words: None,
    log: Path | None = None,
) -> AsyncGenerator[HttpReplica]:
    """Start an engine on a free loopback port and yield a replica that is ready.

    version: number of the weights in `model_dir`. on_end: called with the process's last words if it ends by itself.
    log: what the process says is appended to it.
    Raises `EngineError` with the process's own error text when it does not get ready within `config.start_timeout_s`.
    """
    token = secrets.token_hex(16)

    async def said(server: ServerProcess) -> str:
        return str(json.loads(await server.first_line(config.start_timeout_s))["url"])

    def replica(url: str) -> HttpReplica:
        request_s, control_s = config.request_timeout_s, config.control_timeout_s
        return HttpReplica(name, url, token, request_timeout_s=request_s, control_timeout_s=control_s)

    command = _command(config, model_dir, name, version)
    environment = {**_ENVIRONMENT, **os.environ, TOKEN_VARIABLE: token}
    async with started(
        command, name=name, env=environment, ready=said, replica=replica, on_end=on_end, log=log
    ) as there:
        yield there


def _command(config: EmbeddedEngineConfig, model_dir: Path, name: str, version: int) -> list[str]:
    command = [sys.executable, "-m", "muster.engine.embedded.serve", "--model", str(model_dir), "--name", name]
    command += ["--version-number", str(version)]
    for field, value in config.model_dump(exclude={"kind", "replicas"}).items():
        command += [f"--{field.replace('_', '-')}", str(value)]
    return command
