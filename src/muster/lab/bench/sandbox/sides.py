"""The sides of `muster bench sandbox`: a backend of ours, or a daemon used the plain way.

    Side.once()      one sandbox's life: (operation, seconds) … as its user waits for them
    Side.starts(n)   seconds for n starts, AT_ONCE at a time, each closed again

Law: both kinds do the same work. The plain way is what a harness does without a backend: `docker run` of a sleeping
container, `docker exec` of a bash for each command, `docker commit`, `docker rm --force`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import docker

from muster import clock
from muster.sandbox.port import SandboxBackend
from muster.types import ImageSpec, Limits

AT_ONCE = 4
EXECS = 5  # commands of each kind in one life
COLD, FORK, BUILTIN, EXTERNAL = "cold start", "fork", "exec builtin", "exec external"
SNAPSHOT, CLOSE, STARTS = "snapshot", "close", "start, 4 at once"
OPERATIONS = (COLD, FORK, BUILTIN, EXTERNAL, SNAPSHOT, CLOSE)
_COMMANDS = ((BUILTIN, ":"), (EXTERNAL, "/bin/ls /"))
_TIMEOUT_S = 30.0

Timings = list[tuple[str, float]]


class Side(Protocol):
    """Something that runs sandboxes. Times are seconds on `clock.now()`."""

    async def once(self) -> Timings: ...

    async def starts(self, count: int) -> float: ...

    async def close(self) -> None: ...


class BackendSide:
    """One of our backends."""

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self._image = ImageSpec()

    async def once(self) -> Timings:
        lap = _Laps()
        snapshot = await self._backend.prepare(self._image)
        first = await self._backend.fork(snapshot, limits=Limits(), label="cold")
        await first.run(":", _TIMEOUT_S)
        lap(COLD)
        sandbox = await self._backend.fork(snapshot, limits=Limits(), label="fork")
        lap(FORK)
        for operation, command in _COMMANDS:
            for _ in range(EXECS):
                await sandbox.run(command, _TIMEOUT_S)
                lap(operation)
        await sandbox.run("echo data > /tmp/file", _TIMEOUT_S)
        lap()
        frozen = await sandbox.snapshot()
        lap(SNAPSHOT)
        await sandbox.close()
        lap(CLOSE)
        await first.close()
        await self._backend.discard(frozen)
        return lap.taken

    async def starts(self, count: int) -> float:
        snapshot = await self._backend.prepare(self._image)
        turns = asyncio.Semaphore(AT_ONCE)

        async def start() -> None:
            async with turns:
                sandbox = await self._backend.fork(snapshot, limits=Limits(), label="start")
                await sandbox.close()

        return await _timed(start, count)

    async def close(self) -> None:
        await self._backend.close()


class PlainSide:
    """A Docker or Podman daemon without our backend, through the SDK, with the same limits as the backend sets."""

    def __init__(self, host: str, image: str, *, memory_bytes: int | None, pids: int | None) -> None:
        self._api: Any = docker.APIClient(base_url=host, version="auto", max_pool_size=AT_ONCE)
        self._image = image
        self._limits = {"mem_limit": memory_bytes, "pids_limit": pids}

    async def once(self) -> Timings:
        return await asyncio.to_thread(self._once)

    async def starts(self, count: int) -> float:
        turns = asyncio.Semaphore(AT_ONCE)

        async def start() -> None:
            async with turns:
                await asyncio.to_thread(lambda: self._remove(self._run()))

        return await _timed(start, count)

    async def close(self) -> None:
        self._api.close()

    def _once(self) -> Timings:
        lap = _Laps()
        first = self._run()
        self._exec(first, ":")
        lap(COLD)
        container = self._run()
        lap(FORK)
        for operation, command in _COMMANDS:
            for _ in range(EXECS):
                self._exec(container, command)
                lap(operation)
        self._exec(container, "echo data > /tmp/file")
        lap()
        image: str = self._api.commit(container)["Id"]
        lap(SNAPSHOT)
        self._remove(container)
        lap(CLOSE)
        self._remove(first)
        self._api.remove_image(image)
        return lap.taken

    def _run(self) -> str:
        host = self._api.create_host_config(network_mode="none", **self._limits)
        made: str = self._api.create_container(self._image, ["sleep", "infinity"], host_config=host)["Id"]
        self._api.start(made)
        return made

    def _exec(self, container: str, command: str) -> None:
        made = self._api.exec_create(container, ["/bin/bash", "-c", command])
        self._api.exec_start(made)
        assert self._api.exec_inspect(made)["ExitCode"] == 0

    def _remove(self, container: str) -> None:
        self._api.remove_container(container, force=True)


class _Laps:
    """A stopwatch: each call names what took place since the last one; without a name it is not counted."""

    def __init__(self) -> None:
        self.taken: Timings = []
        self._last = clock.now()

    def __call__(self, operation: str | None = None) -> None:
        now = clock.now()
        if operation is not None:
            self.taken.append((operation, now - self._last))
        self._last = clock.now()


async def _timed(start: Callable[[], Any], count: int) -> float:
    begun = clock.now()
    await asyncio.gather(*(start() for _ in range(count)))
    return clock.now() - begun
