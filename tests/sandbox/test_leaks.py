"""Nothing is left: after many forks, and after a controller that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.sandbox.cgroup import Cgroups
from muster.sandbox.namespace import NamespaceBackend
from muster.sandbox.state import RunDirectory, reap
from muster.types import ImageSpec, Limits
from sandbox.conftest import OnBackend

CONTROLLER = """
import sys
from pathlib import Path
from muster import clock
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace import NamespaceBackend
from muster.types import ImageSpec, Limits

async def main():
    backend = NamespaceBackend(SandboxConfig(state_dir=Path(sys.argv[1])), run="victim")
    image = await backend.prepare(ImageSpec())
    for number in range(3):
        sandbox = await backend.fork(image, limits=Limits(), label="x")
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


def cgroups_naming(text: str) -> list[Path]:
    return [p for h in Cgroups.detect().hierarchies.values() for p in (h / "muster").glob(f"*{text}*")]


@pytest.mark.sandbox
def test_many_forks_leave_no_process_no_cgroup_and_no_file(on_backend: OnBackend, tmp_path: Path) -> None:
    async def body(backend: NamespaceBackend) -> None:
        image = await backend.prepare(ImageSpec())
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        for number in range(200):
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
    assert reap(state).runs == ()  # its owner lives
    controller.send_signal(signal.SIGKILL)
    controller.wait()
    controller.stdout.close()
    for _ in range(200):
        if not processes_naming(str(state / "runs")):
            break
        os.sched_yield()
        subprocess.run(["/bin/sleep", "0.01"], check=True)
    assert processes_naming(str(state / "runs")) == []
    assert reap(state).runs == (run,)
    assert [p.name for p in (state / "runs").iterdir()] == [".lock"]
    assert cgroups_naming(run) == []


def test_a_layer_goes_with_its_last_holder(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, "a label/with odd characters")
    layer = run.new_layer()
    run.hold((layer.fs, Path("/an/image/layer")))
    assert run.release((layer.fs,)) == []
    assert run.release((layer.fs, Path("/an/image/layer"))) == [layer.root]
    assert run.held_layers == 0
    run.close()
    assert not run.path.exists()


def test_reap_leaves_a_live_run_alone(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, "live")
    assert reap(tmp_path).runs == ()
    assert run.path.is_dir()
    run.close()
