"""Containers and their ends: who is to blame, what a limit does, what an interrupt reaches, what a sandbox sees."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import daemons
from muster import clock
from muster.errors import SandboxLost, SandboxStartError
from muster.lab.bench.sandbox import daemons as machines
from muster.sandbox.docker.backend import DockerBackend
from muster.sandbox.docker.instance import DockerSandbox
from muster.types import Limits
from sandbox.docker.docker_world import OnDaemon, fresh, run

pytestmark = pytest.mark.sandbox

MIB = 1024 * 1024


async def lost(sandbox: DockerSandbox, command: str) -> SandboxLost:
    with pytest.raises(SandboxLost) as ended:
        await sandbox.run(command, timeout_s=10)
    assert not await sandbox.alive()
    return ended.value


def test_a_container_killed_or_removed_from_outside_is_lost_and_not_by_the_agent(on_each: OnDaemon) -> None:
    async def body(backend: DockerBackend) -> None:
        killed, removed = await fresh(backend), await fresh(backend)
        running = asyncio.create_task(lost(killed, "sleep 100"))
        await clock.sleep(0.2)
        await killed.box.call("kill", lambda api: api.kill(killed.box.container))
        assert not (await running).by_agent
        await removed.box.call("rm", lambda api: api.remove_container(removed.box.container, force=True))
        assert not (await lost(removed, "echo hello")).by_agent

    on_each(body)


def test_an_agent_that_ends_the_supervisor_has_destroyed_its_sandbox(on_docker: OnDaemon) -> None:
    async def body(backend: DockerBackend) -> None:
        sandbox = await fresh(backend)
        ended = await lost(sandbox, "printf 'exit 3\\0' >/proc/1/fd/42; sleep 100")
        assert ended.by_agent
        assert ended.evidence["ExitCode"] == 3

    on_docker(body)


def test_an_agent_that_leaves_no_shell_has_destroyed_its_sandbox_and_its_state_can_be_frozen(
    on_docker: OnDaemon,
) -> None:
    async def body(backend: DockerBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run("rm /bin/bash /bin/sh", timeout_s=5)
        assert (await sandbox.snapshot()).id
        assert (await lost(sandbox, "echo hello")).by_agent

    on_docker(body)


def test_a_killed_daemon_loses_its_sandboxes_and_is_not_the_agents_doing() -> None:
    daemons.host("docker")  # or skip

    async def body(backend: DockerBackend) -> None:
        sandbox = await fresh(backend)
        info = await sandbox.box.call("info", lambda api: api.info())
        pid = int(Path(info["DockerRootDir"]).parent.joinpath("pid").read_text())
        os.kill(pid, signal.SIGKILL)
        ended = await lost(sandbox, "echo hello; sleep 100")
        assert not ended.by_agent
        with pytest.raises(SandboxStartError):
            await backend.fork(replace(sandbox._origin), limits=Limits(), label="after")  # pyright: ignore

    with machines.dockerd() as host:
        machines.import_base(host)
        run(host, body)  # closing cannot ask it either, and goes on


def test_limits_are_observations_and_the_sandbox_goes_on(on_docker: OnDaemon) -> None:
    async def body(backend: DockerBackend) -> None:
        sandbox = await fresh(backend, Limits(memory_bytes=48 * MIB, pids=40, disk_bytes=16 * MIB))
        hog = await sandbox.run('x=$(head -c 200M /dev/zero | tr "\\0" x); echo ${#x}', timeout_s=20)
        assert hog.out_of_memory or hog.exit_code != 0
        assert (hog.counters.oom_kills or 0) > 0
        bomb = await sandbox.run("f() { f | f & f; }; f", timeout_s=1)
        assert bomb.timed_out
        assert (bomb.counters.pids_refused or 0) > 0
        # the last words of the bomb may come with the answer
        assert (await sandbox.run("ls / | head -n 1", timeout_s=5)).output.endswith("app\n")
        one = await sandbox.run("head -c 30M /dev/zero > one; ls -s one", timeout_s=10)
        assert one.exit_code != 0
        full = await sandbox.run("for n in {1..90}; do head -c 1M /dev/zero > f$n; sleep 0.05; done", timeout_s=20)
        assert full.exit_code is None
        assert "No space left on device" in full.output
        assert (await sandbox.run("rm f*; echo still here", timeout_s=10)).output == "still here\n"

    on_docker(body)


def test_a_command_is_interrupted_with_all_it_started_and_others_are_spared(on_each: OnDaemon) -> None:
    async def body(backend: DockerBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run("sleep 1001 & NAME=value", timeout_s=5)
        other = asyncio.create_task(sandbox.run("sleep 0.7; echo whole", timeout_s=10, session="other"))
        await clock.sleep(0.2)
        script = "trap '' INT; (setsid sleep 1002 &); sleep 1003 & for n in 1 2 3; do sleep 1004; done; sleep 1005"
        assert (await sandbox.run(script, timeout_s=0.2)).timed_out
        left = await sandbox.run("echo $NAME; for p in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$p; done", timeout_s=5)
        assert left.output.startswith("value\n")
        assert "sleep 1001" in left.output
        assert not any(f"sleep 100{n}" in left.output for n in (2, 3, 4, 5))
        assert (await other).output == "whole\n"

    on_each(body)


def test_a_sandbox_sees_no_network_no_host_and_little_power(on_each: OnDaemon) -> None:
    async def body(backend: DockerBackend) -> None:
        sandbox = await fresh(backend)
        said = await sandbox.run("ls /sys/class/net; grep CapEff /proc/self/status; grep NoNew /proc/self/status", 5)
        assert said.output == "lo\nCapEff:\t00000000a00405fb\nNoNewPrivs:\t1\n"
        assert (await sandbox.run("echo 1 >/proc/sys/kernel/sysrq", timeout_s=5)).exit_code != 0

    on_each(body)
