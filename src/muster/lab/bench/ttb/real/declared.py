"""A backend whose sandboxes cost what the declaration says: the image, a cold start, a graceful stop.

    prepare(image) ─ inner ─ what is left of image_s, once an image ─► Snapshot
    fork(label)    ─ inner ─ what is left of boot_s ─► Sandbox ─► … ─► close: stop_s in the slot, then inner

Law: real sandboxes do the work; time is added where the declaration says that common practice takes it, and nothing is
shortened. What a launch's start takes is drawn as `lab.collection.timed_sandbox` draws it. Forks with mounts are a
verifier's: every arm grades alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from muster import clock
from muster.lab.collection.timed_sandbox import SandboxTimes
from muster.sandbox.port import MAIN, Counters, Mount, Result, Sandbox, SandboxBackend, Snapshot
from muster.types import ImageSpec, Limits

Share = Callable[[str], float]
"""In (0, 1), fixed for each name: which quantile its time is."""


class DeclaredBackend:
    """Implements `sandbox.port.SandboxBackend` over `inner`. Images are told apart by their names, also where `inner`
    makes the same of them: forks of one are not forks of another.
    """

    def __init__(self, inner: SandboxBackend, times: SandboxTimes, *, share: Share) -> None:
        self._inner = inner
        self._times = times
        self._share = share
        self._prepared: dict[str, asyncio.Task[Snapshot]] = {}  # by the id of the snapshot that `prepare` gives

    async def prepare(self, image: ImageSpec) -> Snapshot:
        id = f"image-{image.docker_image}"
        if id not in self._prepared:
            self._prepared[id] = asyncio.get_running_loop().create_task(self._prepare(id, image))
        return replace(await asyncio.shield(self._prepared[id]), id=id)

    async def fork(
        self,
        snapshot: Snapshot,
        *,
        limits: Limits,
        label: str,
        mounts: tuple[Mount, ...] = (),
        toolchain: Snapshot | None = None,
    ) -> Sandbox:
        asked = clock.now()
        sandbox = await self._inner.fork(
            await self._inner_of(snapshot),
            limits=limits,
            label=label,
            mounts=mounts,
            toolchain=None if toolchain is None else await self._inner_of(toolchain),
        )
        if mounts:
            return sandbox
        whole_s = self._times.boot_s.quantile(self._share(f"{snapshot.id}/{label}"))
        try:
            await clock.sleep(max(0.0, asked + whole_s - clock.now()))
        except BaseException:
            await sandbox.close()
            raise
        return _Graceful(sandbox, self._times.stop_s)

    async def restore(self, id: str) -> Snapshot | None:
        return await self._inner.restore(id)

    async def discard(self, snapshot: Snapshot) -> None:
        await self._inner.discard(snapshot)

    async def close(self) -> None:
        for preparing in self._prepared.values():
            preparing.cancel()
        await asyncio.gather(*self._prepared.values(), return_exceptions=True)
        await self._inner.close()

    async def _prepare(self, id: str, image: ImageSpec) -> Snapshot:
        asked = clock.now()
        snapshot = await self._inner.prepare(replace(image, docker_image=None))  # the base: the name tells them apart
        await clock.sleep(max(0.0, asked + self._times.image_s.quantile(self._share(id)) - clock.now()))
        return snapshot

    async def _inner_of(self, snapshot: Snapshot) -> Snapshot:
        prepared = self._prepared.get(snapshot.id)
        return snapshot if prepared is None else replace(snapshot, id=(await prepared).id)


class _Graceful:
    """A sandbox that is asked to stop before it is killed."""

    def __init__(self, inner: Sandbox, stop_s: float) -> None:
        self.id = inner.id
        self._inner = inner
        self._stop_s = stop_s

    async def run(
        self, command: str, timeout_s: float, *, silence_s: float | None = None, session: str = MAIN
    ) -> Result:
        return await self._inner.run(command, timeout_s, silence_s=silence_s, session=session)

    async def read(self, path: str) -> bytes:
        return await self._inner.read(path)

    async def write(self, path: str, data: bytes) -> None:
        await self._inner.write(path, data)

    async def snapshot(self) -> Snapshot:
        return await self._inner.snapshot()

    async def keep(self) -> Snapshot | None:
        return await self._inner.keep()

    async def alive(self) -> bool:
        return await self._inner.alive()

    async def close(self) -> Counters:
        stop_s, self._stop_s = self._stop_s, 0.0
        await clock.sleep(stop_s)
        return await self._inner.close()
