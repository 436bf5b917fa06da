"""Nothing is left: after many forks, and after a controller that was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from muster import clock
from muster.errors import SandboxLost
from muster.sandbox.cgroup import Cgroups
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.namespace.storage.state import RunDirectory, reap
from muster.types import ImageSpec, Limits
from sandbox.conftest import OnBackend

CONTROLLER = """
import os
import sys
from pathlib import Path
from muster import clock
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.types import ImageSpec, Limits

async def main():
    quota = "exact" if os.geteuid() == 0 else "polled"
    backend = NamespaceBackend(SandboxConfig(state_dir=Path(sys.argv[1]), disk_quota=quota), run="victim")
    image = await backend.prepare(ImageSpec())
    for number in range(3):
        sandbox = await backend.fork(image, limits=Limits(egress=("x.org",)), label="x")
        await sandbox.run("sleep 1000 & echo x > /app/file", 5)
        await sandbox.snapshot()
        await sandbox.run("sleep 1000 & true", 5)
    print("ready", flush=True)
    await clock.sleep(1000)

clock.run(main())
"""


def processes_naming(text: str) -> list[int]:
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def group_of_the_proxy(controller: int) -> list[int]:
    """The egress proxy of a controller and its parent: one session of their own."""
    children = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    proxy = next(int(pid) for pid in children if b"egress.process" in Path(f"/proc/{pid}/cmdline").read_bytes())
    group: list[int] = []
    for pid in processes_naming("egress.process"):
        with suppress(ProcessLookupError):  # another test's, which ends just now
            if os.getsid(pid) == proxy:
                group.append(pid)
    return group


def eventually(true: Callable[[], bool]) -> None:
    deadline = clock.now() + 10
    while not true():
        assert clock.now() < deadline
        clock.block(0.01)


def mounts_below(directory: Path) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if f" {directory}/" in line]


def loops_below(directory: Path) -> list[Path]:
    """Loop devices whose file is, or was, below `directory`."""
    files = Path("/sys/block").glob("loop*/loop/backing_file")
    return [file for file in files if file.read_text().startswith(f"{directory}/")]


def cgroups_naming(text: str) -> list[Path]:
    return [p for h in Cgroups.detect().hierarchies.values() for p in (h / "muster").glob(f"*{text}*")]


@pytest.mark.sandbox
def test_many_forks_leave_no_process_no_cgroup_and_no_file(on_backend: OnBackend, tmp_path: Path) -> None:
    async def body(backend: NamespaceBackend) -> None:
        image = await backend.prepare(ImageSpec())
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        for number in range(100):
            sandbox = await backend.fork(image, limits=Limits(), label="many")
            if number % 20 == 0:
                await sandbox.run("sleep 1000 & echo x > /app/file", timeout_s=5)
                await backend.discard(await sandbox.snapshot())
            await sandbox.close()
        await backend._janitor.close()  # pyright: ignore
        assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors + 2
        run = next(p for p in (tmp_path / "state" / "runs").iterdir() if p.is_dir())
        assert list((run / "layers").iterdir()) == []
        assert [c for p in cgroups_naming(run.name) for c in p.iterdir() if c.is_dir()] == []

    on_backend(body)
    assert processes_naming(str(tmp_path / "state")) == []


@pytest.mark.sandbox
def test_a_killed_controller_leaves_no_process_and_reap_removes_the_rest(tmp_path: Path) -> None:
    state = tmp_path / "state"
    controller = subprocess.Popen([sys.executable, "-c", CONTROLLER, state], stdout=subprocess.PIPE)
    assert controller.stdout is not None
    assert controller.stdout.readline() == b"ready\n"
    run = next(p.name for p in (state / "runs").iterdir() if p.is_dir())
    assert processes_naming(str(state / "runs"))
    proxies = group_of_the_proxy(controller.pid)
    assert len(proxies) == 2
    assert reap(state).runs == ()  # its owner lives
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    controller.stdout.close()
    eventually(lambda: processes_naming(str(state / "runs")) == [])
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in proxies))
    assert (mounts_below(state) != []) == (os.geteuid() == 0)
    assert reap(state).runs == (run,)
    assert [p.name for p in (state / "runs").iterdir()] == [".lock"]
    assert cgroups_naming(run) == []
    assert mounts_below(state) == []
    eventually(lambda: loops_below(state) == [])  # the kernel detaches them once the last write is done


@pytest.mark.sandbox
def test_a_running_backend_removes_what_another_left_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        backend = NamespaceBackend(SandboxConfig(state_dir=tmp_path), reap_every_s=0.01)
        left = RunDirectory(tmp_path, "left")
        os.close(left._lock)  # pyright: ignore  # as the kernel does for a process that is gone
        async with clock.timeout(10):
            while left.path.exists():
                await clock.sleep(0.01)
        await backend.close()

    clock.run(main())


@pytest.mark.sandbox
def test_a_sandbox_over_its_lifetime_is_lost_by_our_doing(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await backend.fork(await backend.prepare(ImageSpec()), limits=Limits(), label="old")
        with pytest.raises(SandboxLost, match=r"older than 0\.5 s") as lost:
            await sandbox.run("sleep 100", timeout_s=30)
        assert not lost.value.by_agent
        assert not await sandbox.alive()
        young = await backend.fork(await backend.prepare(ImageSpec()), limits=Limits(), label="young")
        assert await young.alive()

    on_backend(body, max_lifetime_s=0.5)


def test_forks_that_are_cancelled_as_they_start_leave_no_process(tmp_path: Path) -> None:
    async def main() -> None:
        backend = NamespaceBackend(SandboxConfig(state_dir=tmp_path), run="cancelled")
        image = await backend.prepare(ImageSpec())
        for number in range(40):
            fork = asyncio.ensure_future(backend.fork(image, limits=Limits(), label="x"))
            await clock.sleep(
                0.0005 * (number % 20)
            )  # any moment: bubblewrap has a PID 1 that waits for it, or not yet
            fork.cancel()
            await asyncio.gather(fork, return_exceptions=True)
        await backend.close()

    clock.run(main())
    deadline = clock.now() + 10  # what was killed is still listed for a moment
    while (left := processes_naming(str(tmp_path))) and clock.now() < deadline:
        clock.block(0.02)
    assert left == []
