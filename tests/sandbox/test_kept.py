"""Kept states outlive their process, and nothing else does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from muster import clock
from muster.sandbox.config import SandboxConfig
from muster.sandbox.kept import KEPT, KeptStates, is_kept, needed_layers
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.namespace.storage.state import RunDirectory, reap
from muster.sandbox.port import Snapshot
from muster.types import ImageSpec, Limits

_KEEP_AND_DIE = """
import os, signal, sys
from pathlib import Path
from muster import clock
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.types import ImageSpec, Limits

async def main():
    backend = NamespaceBackend(SandboxConfig(state_dir=Path(sys.argv[1])), run="demo")
    sandbox = await backend.fork(await backend.prepare(ImageSpec()), limits=Limits(), label="agent")
    await sandbox.run("cd /tmp; echo one > file; NAME=value; f() { echo called; }", 10)
    kept = await sandbox.keep()
    await sandbox.run("echo two > file", 10)
    print(kept.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

clock.run(main())
"""


def keep(run: RunDirectory, kept: KeptStates, *names: str) -> Snapshot:
    """A kept state of fresh layers with a file each."""
    layers = tuple(run.new_layer().fs for _ in names)
    for layer, name in zip(layers, names, strict=True):
        (layer / name).touch()
    snapshot = Snapshot(id=f"{run.name}/{names[-1]}", layers=layers, shell_state="X=1", env={"A": "b"}, user="me:us")
    assert kept.add(snapshot)
    return snapshot


def die(run: RunDirectory) -> None:
    """As when its process is killed: its lock is free, and that is all."""
    os.close(run._lock)


def states(tmp_path: Path, lifetime_s: float = 100.0) -> KeptStates:
    return KeptStates(tmp_path / KEPT, lifetime_s=lifetime_s)


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, "run")
    snapshot = keep(run, states(tmp_path), "a", "b")
    later = states(tmp_path)
    assert (later.get(snapshot.id), later.load(snapshot.id)) == (None, snapshot)
    assert later.load(f"{snapshot.id}x") is None
    later.remove(snapshot.id)
    assert not is_kept(tmp_path / KEPT, snapshot.id)
    run.close()


def test_what_is_kept_survives_its_run_and_nothing_beside_it(tmp_path: Path) -> None:
    run, kept = RunDirectory(tmp_path, "dead"), states(tmp_path)
    snapshot = keep(run, kept, "a", "b")
    other = run.new_layer()
    (run.path / "views").mkdir()
    die(run)
    for _ in range(2):
        assert run.name not in reap(tmp_path).runs
        assert all((layer / name).exists() for layer, name in zip(snapshot.layers, "ab", strict=True))
        assert not other.root.exists()
        assert sorted(path.name for path in run.path.iterdir()) == ["layers", "lock"]
    kept.remove(snapshot.id)
    assert run.name in reap(tmp_path).runs
    assert not run.path.exists()


def test_the_next_process_adopts_it_and_removes_what_it_lets_go(tmp_path: Path) -> None:
    dead = RunDirectory(tmp_path, "dead")
    snapshot = keep(dead, states(tmp_path), "a")
    die(dead)
    run, kept = RunDirectory(tmp_path, "next"), states(tmp_path)
    assert run.adopt(snapshot.layers)
    assert run.owns(snapshot.layers[0])
    run.hold(snapshot.layers)
    kept.remove(snapshot.id)
    assert reap(tmp_path).runs == ()
    assert run.release(snapshot.layers) == []
    assert run.release(snapshot.layers) == [snapshot.layers[0].parent]
    run.close()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [".lock"]


def test_what_is_kept_on_top_of_an_adopted_layer_keeps_that_layer(tmp_path: Path) -> None:
    first = RunDirectory(tmp_path, "first")
    old = keep(first, states(tmp_path), "a")
    die(first)
    second, kept = RunDirectory(tmp_path, "second"), states(tmp_path)
    assert second.adopt(old.layers)
    new = Snapshot(id=f"{second.name}/new", layers=(*old.layers, second.new_layer().fs))
    assert kept.add(new)
    kept.remove(old.id)
    second.close()
    reap(tmp_path)
    assert all(layer.is_dir() for layer in new.layers)
    assert needed_layers(tmp_path / KEPT) == set(new.layers)


def test_a_state_that_another_process_has_or_that_lost_a_layer_is_gone(tmp_path: Path) -> None:
    dead = RunDirectory(tmp_path, "dead")
    snapshot = keep(dead, states(tmp_path), "a")
    one, two = RunDirectory(tmp_path, "one"), RunDirectory(tmp_path, "two")
    assert not one.adopt(snapshot.layers), "its process lives"
    die(dead)
    assert one.adopt(snapshot.layers)
    assert not two.adopt(snapshot.layers)
    one.close()
    (snapshot.layers[0] / "a").unlink()
    snapshot.layers[0].rmdir()
    assert not two.adopt(snapshot.layers)
    two.close()


@pytest.mark.parametrize("change", [{"until": 0.0}, {"boot": "another"}, {"id": "another"}])
def test_a_state_whose_time_is_over_or_that_is_not_of_this_boot_is_gone(
    tmp_path: Path, change: dict[str, object]
) -> None:
    run = RunDirectory(tmp_path, "dead")
    snapshot = keep(run, states(tmp_path), "a")
    (path,) = (tmp_path / KEPT).iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert states(tmp_path).load(snapshot.id) is None
    die(run)
    if "id" not in change:
        assert run.name in reap(tmp_path).runs
        assert not path.exists()


def test_a_file_that_says_nothing_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / KEPT).mkdir()
    for name, text in (("a", ""), ("b", "{}"), ("c", "[1]"), ("d", "no")):
        (tmp_path / KEPT / f"{name}.json").write_text(text)
    assert needed_layers(tmp_path / KEPT) == frozenset()
    assert list((tmp_path / KEPT).iterdir()) == []


def test_a_disk_that_takes_nothing_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / KEPT).write_text("a file in its place")
    assert not states(tmp_path).add(Snapshot(id="run/1"))


def on(state: Path, body: Callable[[NamespaceBackend], Awaitable[None]]) -> None:
    async def main() -> None:
        backend = NamespaceBackend(SandboxConfig(state_dir=state, kill_grace_s=0.1), run="demo")
        try:
            await body(backend)
        finally:
            await backend.close()

    clock.run(main())


@pytest.mark.sandbox
def test_after_kill_9_the_next_process_forks_what_was_kept_and_leaves_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    child = subprocess.run(
        [sys.executable, "-c", _KEEP_AND_DIE, str(state)], capture_output=True, text=True, check=False, timeout=60
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    id = child.stdout.strip()

    async def elsewhere(backend: NamespaceBackend) -> None:
        assert is_kept(state / KEPT, id), "another run's start reaps what died, but for this"

    async def body(backend: NamespaceBackend) -> None:
        kept = await backend.restore(id)
        assert kept is not None
        fork = await backend.fork(kept, limits=Limits(), label="again")
        assert (await fork.run("pwd; cat file; echo $NAME; f", 10)).output == "/tmp\none\nvalue\ncalled\n"
        further = await fork.keep()
        assert further is not None
        await backend.discard(kept)
        await fork.run("echo three > file", 10)
        await fork.close()
        last = await backend.fork(further, limits=Limits(), label="last")
        assert (await last.run("cat file", 10)).output == "one\n"
        await backend.discard(further)

    on(state, elsewhere)
    on(state, body)
    assert [path.name for path in (state / "runs").iterdir()] == [".lock"]
    assert list((state / KEPT).iterdir()) == []


@pytest.mark.sandbox
def test_an_agent_whose_files_let_no_new_shell_start_is_left_alone(tmp_path: Path) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await backend.fork(await backend.prepare(ImageSpec()), limits=Limits(), label="agent")
        await sandbox.run("unlink /bin; NAME=value", 10)
        assert await sandbox.keep() is None
        assert (await sandbox.run("echo $NAME", 10)).output == "value\n", "its own shell lives on"

    on(tmp_path / "state", body)


@pytest.mark.sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="exact quotas need root")
def test_under_an_exact_quota_nothing_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        backend = NamespaceBackend(SandboxConfig(state_dir=tmp_path / "state", disk_quota="exact"))
        try:
            sandbox = await backend.fork(await backend.prepare(ImageSpec()), limits=Limits(), label="agent")
            assert await sandbox.keep() is None
        finally:
            await backend.close()

    clock.run(main())
