"""Hostile final states at their verifier, and what is left of states and sandboxes at a daemon."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import docker
import pytest

import daemons
from muster.errors import SandboxStartError
from muster.sandbox.docker.backend import DockerBackend
from muster.sandbox.docker.labels import CONTROLLER, Removed
from muster.sandbox.port import Mount
from muster.types import ImageSpec, Limits
from sandbox.docker.docker_world import OnDaemon, fresh, run

pytestmark = pytest.mark.sandbox


@pytest.mark.parametrize(
    "trick",
    [
        "for t in ls cat; do echo '#!/bin/sh\necho fooled' >/usr/bin/$t; chmod +x /usr/bin/$t; done",
        "mkdir /own; echo '#!/bin/bash\necho fooled' >/own/ls; chmod +x /own/ls; rm /bin; ln -s own /bin; hash -r",
        "rm /bin; mkdir /bin; printf '#!/usr/bin/bash\necho fooled\n' >/bin/ls; chmod +x /bin/ls",
        "echo /tmp/evil.so >/etc/ld.so.preload",
    ],
)
def test_a_verifier_works_with_the_tools_of_the_image_whatever_an_agent_did(
    on_docker: OnDaemon, trick: str, tmp_path: Path
) -> None:
    (tmp_path / "given").write_text("hidden tests\n", encoding="utf-8")

    async def body(backend: DockerBackend) -> None:
        image = await backend.prepare(ImageSpec(workdir="/app"))
        agent = await backend.fork(image, limits=Limits(), label="agent")
        await agent.run(f"echo work >/app/result; {trick}", timeout_s=5)
        final = await agent.snapshot()
        tests = (Mount(source=tmp_path, target="/tests"),)
        verifier = await backend.fork(final, limits=Limits(), label="v", mounts=tests, toolchain=image)
        said = await verifier.run("/bin/ls /tests; /bin/cat /tests/given /app/result; touch /bin/x", timeout_s=5)
        assert said.output.startswith("given\nhidden tests\nwork\n")
        assert said.output.endswith("Read-only file system\n")

    on_docker(body)


def test_nothing_is_mounted_where_an_agent_put_a_link(on_docker: OnDaemon, tmp_path: Path) -> None:
    async def body(backend: DockerBackend) -> None:
        agent = await fresh(backend)
        await agent.run("mkdir -p /own /logs; ln -s /own /logs/verifier", timeout_s=5)
        final = await agent.snapshot()
        mounts = (Mount(source=tmp_path, target="/logs/verifier", writable=True),)
        with pytest.raises(SandboxStartError, match="replaced by a link") as refused:
            await backend.fork(final, limits=Limits(), label="v", mounts=mounts)
        assert refused.value.evidence == {"replaced": "/logs/verifier"}

    on_docker(body)


def labelled(host: str) -> int:
    """Containers, volumes and images at a daemon that belong to a controller."""
    with contextlib.closing(docker.APIClient(host, "auto")) as api:
        filters = {"label": CONTROLLER}
        owned = [i for i in api.images(all=True, filters=filters) if i["Labels"][CONTROLLER]]
        return len(api.containers(all=True, filters=filters)) + len(api.volumes(filters)["Volumes"] or ()) + len(owned)


CONTROLLER_PROGRAM = """
import sys
from muster import clock
from muster.sandbox.config import SandboxConfig
from muster.sandbox.docker.backend import DockerBackend
from muster.types import ImageSpec, Limits

async def main():
    backend = DockerBackend(SandboxConfig(docker_host=sys.argv[1]), run="victim")
    image = await backend.prepare(ImageSpec())
    agent = await backend.fork(image, limits=Limits(), label="agent")
    final = await agent.snapshot()
    again = await backend.fork(final, limits=Limits(), label="again", toolchain=image)
    await again.snapshot()
    print("ready", flush=True)
    await clock.sleep(1000)

clock.run(main())
"""


@pytest.mark.parametrize("kind", list(daemons.KINDS))
def test_a_killed_controller_leaves_what_the_next_one_removes_by_its_labels(kind: str) -> None:
    host = daemons.host(kind)
    before = labelled(host)
    victim = subprocess.Popen([sys.executable, "-c", CONTROLLER_PROGRAM, host], stdout=subprocess.PIPE)
    assert victim.stdout is not None
    assert victim.stdout.readline() == b"ready\n"

    async def body(backend: DockerBackend) -> None:
        mine = await fresh(backend)
        assert await backend.reap() == Removed(), "its owner lives"
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        assert await backend.reap() == Removed(containers=2, volumes=1, images=2)
        assert await mine.alive()

    run(host, body)
    assert labelled(host) == before


def test_many_forks_snapshots_and_discards_leave_nothing(on_docker: OnDaemon) -> None:
    host = daemons.host("docker")
    before = labelled(host)

    async def body(backend: DockerBackend) -> None:
        sandboxes = await asyncio.gather(*(fresh(backend) for _ in range(6)))
        first = await sandboxes[0].snapshot()
        child = await backend.fork(first, limits=Limits(), label="child")
        await backend.discard(first)  # in use: it goes when it can
        second = await child.snapshot()
        await backend.discard(second)
        for sandbox in (*sandboxes, child):
            await sandbox.close()
        assert backend.live == 0

    on_docker(body)
    assert labelled(host) == before
