"""Taking turns in real sandboxes: what gave way goes on with its files and its shell, and nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest

from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.pool.pool import Pool
from muster.sandbox.port import Snapshot
from muster.types import ImageSpec, Limits
from sandbox.conftest import OnBackend

pytestmark = pytest.mark.sandbox


async def counted(pool: Pool, image: Snapshot, name: str, turns: int) -> tuple[list[str], int]:
    """A shell that counts its turns in a variable, in a file, and in a directory that it made and entered."""
    pauses = 0
    async with pool.lease(image, Limits(), name) as lease:
        await lease.sandbox.run(f"N=0; mkdir {name}; cd {name}; count() {{ N=$((N+1)); echo $N >> turns; }}", 10)
        for _ in range(turns):
            await lease.sandbox.run("count; sleep 0.05", 10)
            if lease.should_give_way:
                pauses += await lease.give_way()
        said = await lease.sandbox.run("echo $N; wc -l < turns; basename $PWD", 10)
        return said.output.split(), pauses


def test_five_shells_share_two_sandboxes_and_lose_nothing(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        image = await backend.prepare(ImageSpec())
        pool = Pool(backend, SandboxConfig(slots=2, warm=0, slice_s=0.15))
        names = [f"user{n}" for n in range(5)]
        ended = await asyncio.gather(*(counted(pool, image, name, 8) for name in names))
        await pool.close()
        assert [said for said, _ in ended] == [["8", "8", name] for name in names]
        assert sum(pauses for _, pauses in ended) == pool.statistics().pauses > 0
        assert backend.live == 0

    on_backend(body)
