"""Faults of the network while weights are published: an engine behind a cable that is cut."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest

import tiny_llama as tiny
from app.publication_ground import ENGINE, ROUTER, Ground
from muster import clock
from muster.engine.embedded.launch import launch
from muster.engine.fleet.fleet import Fleet
from muster.engine.fleet.health import ReplicaState
from muster.engine.http.replica import HttpReplica
from muster.engine.port import InFlight
from muster.engine.servers.process import spawn

pytestmark = pytest.mark.model


@contextmanager
def namespace(name: str, here: str, there: str) -> Iterator[Callable[[str], None]]:
    """A network namespace with one cable to this machine; yields what sets the cable "up" or "down"."""
    cable = f"v{name}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    ip("netns", "add", name)
    try:
        ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", f"{here}/30", "dev", cable)
        ip("link", "set", cable, "up")
        ip("-n", name, "addr", "add", f"{there}/30", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield lambda state: ip("link", "set", cable, state)
    finally:
        with suppress(subprocess.CalledProcessError):
            ip("link", "del", cable)
        ip("netns", "del", name)


@asynccontextmanager
async def far_engine(name: str, model: Path, network: str, host: str) -> AsyncIterator[HttpReplica]:
    """An engine in a network namespace."""
    command = [
        "ip",
        "netns",
        "exec",
        network,
        sys.executable,
        "-m",
        "muster.engine.embedded.serve",
        "--model",
        str(model),
    ]
    command += ["--name", name, "--host", host, "--port", "8000", "--dtype", "float32", "--threads", "1"]
    command += ["--max-model-len", "1024", "--max-streams", "4", "--kv-capacity-tokens", "8192"]
    async with spawn(command, name=name, env={**os.environ, "MUSTER_ENGINE_TOKEN": "secret"}) as server:
        await server.first_line(60)
        async with HttpReplica(name, f"http://{host}:8000", "secret", control_timeout_s=2.0) as replica:
            yield replica


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and iproute2")
def test_a_cut_network_loses_nobodys_turn_and_the_replica_behind_it_is_brought_up_to_date(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model")

    async def play(cable: Callable[[str], None], network: str) -> None:
        async with AsyncExitStack() as stack:
            near = stack.enter_async_context(launch(ENGINE, model, "near"))
            far = stack.enter_async_context(far_engine("far", model, network, "10.231.77.2"))
            replicas = await asyncio.gather(far, near)
            ground = Ground(Fleet(replicas, ROUTER), tmp_path)
            await ground.deliver(1)
            requests = {f"n{i}": ground.ask(f"n{i}", 300) for i in range(4)}
            while ground.fleet.draining("far") < 2:
                await clock.sleep(0.01)
            await ground.fleet.replicas[0].pause(InFlight.HOLD)  # so that they cannot end before the cut
            cable("down")
            await ground.look_until(lambda: ground.states["far"] is ReplicaState.DEAD)
            for name, request in requests.items():
                completion = await request
                ground.labelled(name, completion, 300)
                assert completion.replica == "near"
            assert await ground.deliver(2) == ["near"]
            cable("up")
            await ground.heal()
            await ground.on_one_version(2)
            assert (await ground.ask("after", 5)).versions_T.tolist() == [2] * 5

    async def main(cable: Callable[[str], None], network: str) -> None:
        async with clock.timeout(60):
            await play(cable, network)

    network = f"mu{os.getpid()}"
    with namespace(network, "10.231.77.1", "10.231.77.2") as cable:
        clock.run(main(cable, network))
