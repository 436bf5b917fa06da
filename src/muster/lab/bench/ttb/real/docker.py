"""Cold start on this machine, unscaled: a container of a private Docker daemon, from create to answer.

Law: a figure beside the declared one, which is of cold images and busy hosts; no target depends on it.
"""

from __future__ import annotations

from statistics import median

from muster import clock
from muster.lab.bench.sandbox.daemons import Unavailable, dockerd, import_base
from muster.sandbox.config import SandboxConfig
from muster.sandbox.docker.backend import DockerBackend
from muster.types import ImageSpec, Limits

__all__ = ["Unavailable", "docker_start_s"]

_STARTS = 5


def docker_start_s() -> float:
    """Seconds until a shell answers, one at a time; the median. Raises `Unavailable`."""
    with dockerd() as host:
        import_base(host)
        return clock.run(_starts(host))


async def _starts(host: str) -> float:
    backend = DockerBackend(SandboxConfig(docker_host=host), run="ttb")
    try:
        image = await backend.prepare(ImageSpec())
        taken_s: list[float] = []
        for _ in range(_STARTS):
            asked = clock.now()
            sandbox = await backend.fork(image, limits=Limits(), label="cold")
            await sandbox.run(":", SandboxConfig().start_timeout_s)
            taken_s.append(clock.now() - asked)
            await sandbox.close()
        return median(taken_s)
    finally:
        await backend.close()
