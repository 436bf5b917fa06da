"""A sandbox backend that is nothing but time: what booting, waiting, freezing and stopping cost.

    prepare(image) ─ image_s, once an image ─► Snapshot ─fork─ boot_s ─► Sandbox ─run("sleep 2.5")─► … ─close─ stop_s

Law: deterministic. A boot's duration depends on the seed and on the label of the fork, so that the same launch boots as
long whichever arm of a comparison it is in, whenever it starts. Knows one command, `sleep SECONDS`; files do not exist.
"""

from __future__ import annotations

import itertools
import zlib

from pydantic import BaseModel, ConfigDict, Field

from muster import clock
from muster.lab.collection.workload import Lognormal
from muster.sandbox.port import MAIN, Counters, Mount, Result, Snapshot
from muster.types import ImageSpec, Limits


class SandboxTimes(BaseModel):
    """Seconds of each call. The defaults are forks of a prepared image, killed when they end.

    Example: `SandboxTimes(boot_s=Lognormal(median=23, sigma=0.53, cap=97), stop_s=10)`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image_s: Lognormal = Field(default=Lognormal(median=0.0), description="preparing an image, the first time")
    boot_s: Lognormal = Field(default=Lognormal(median=0.025), description="from fork until the sandbox answers")
    command_s: float = Field(default=0.002, ge=0, description="each command, beside its own time")
    snapshot_s: float = Field(default=0.005, ge=0, description="freezing the final state")
    stop_s: float = Field(default=0.01, ge=0, description="close; a graceful stop waits its grace out in the slot")


def share(seed: int, name: str) -> float:
    """A number in (0, 1) for each name, the same in every process."""
    return (zlib.crc32(f"{seed}/{name}".encode()) + 0.5) / 2**32


class TimedBackend:
    """Implements `sandbox.port.SandboxBackend`. `booting_s`, `stopping_s`: sandbox seconds spent on these so far.

    Example: `Pool(TimedBackend(SandboxTimes(), seed=7), SandboxConfig())`
    """

    def __init__(self, times: SandboxTimes, *, seed: int) -> None:
        self.times = times
        self._seed = seed
        self._prepared_at: dict[str, float] = {}  # by image; a time to come while it is being prepared
        self._numbers = itertools.count()
        self.live = 0
        self.booting_s = 0.0
        self.stopping_s = 0.0

    async def prepare(self, image: ImageSpec) -> Snapshot:
        id = f"image-{image.docker_image}"
        if id not in self._prepared_at:
            self._prepared_at[id] = clock.now() + self.times.image_s.quantile(share(self._seed, id))
        if (left_s := self._prepared_at[id] - clock.now()) > 0:
            await clock.sleep(left_s)
        return Snapshot(id=id)

    async def fork(
        self,
        snapshot: Snapshot,
        *,
        limits: Limits,
        label: str,
        mounts: tuple[Mount, ...] = (),
        toolchain: Snapshot | None = None,
    ) -> TimedSandbox:
        boot_s = self.times.boot_s.quantile(share(self._seed, f"{snapshot.id}/{label}"))
        self.booting_s += boot_s
        await clock.sleep(boot_s)
        self.live += 1
        return TimedSandbox(self, f"{label}#{next(self._numbers)}")

    async def restore(self, id: str) -> Snapshot | None:
        return None

    async def discard(self, snapshot: Snapshot) -> None:
        pass

    async def close(self) -> None:
        pass

    def frozen(self) -> Snapshot:
        return Snapshot(id=f"snapshot-{next(self._numbers)}")


class TimedSandbox:
    """Implements `sandbox.port.Sandbox`, except that there are no files."""

    def __init__(self, backend: TimedBackend, id: str) -> None:
        self.id = id
        self._backend = backend
        self._closed = False

    async def run(
        self, command: str, timeout_s: float, *, silence_s: float | None = None, session: str = MAIN
    ) -> Result:
        word, _, seconds = command.partition(" ")
        assert word == "sleep", f"{command!r}: a timed sandbox only sleeps"
        asked_s = float(seconds) + self._backend.times.command_s
        duration_s = min(asked_s, timeout_s)
        await clock.sleep(duration_s)
        timed_out = asked_s > timeout_s
        return Result(output="", exit_code=None if timed_out else 0, duration_s=duration_s, timed_out=timed_out)

    async def read(self, path: str) -> bytes:
        raise FileNotFoundError(path)

    async def write(self, path: str, data: bytes) -> None:
        pass

    async def snapshot(self) -> Snapshot:
        await clock.sleep(self._backend.times.snapshot_s)
        return self._backend.frozen()

    async def keep(self) -> Snapshot | None:
        return await self.snapshot()

    async def alive(self) -> bool:
        return not self._closed

    async def close(self) -> Counters:
        if not self._closed:
            self._closed = True
            self._backend.live -= 1
            self._backend.stopping_s += self._backend.times.stop_s
            await clock.sleep(self._backend.times.stop_s)
        return Counters()
