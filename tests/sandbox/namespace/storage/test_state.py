"""The state directory: layers and their holders, short names, and what is reaped."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from muster import clock
from muster.sandbox.cgroup import PARENT, Cgroups
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.namespace.storage.state import RunDirectory, reap
from muster.types import ImageSpec, Limits


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


def test_few_layers_keep_their_names(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, "few")
    layers = (run.new_layer().fs, tmp_path / "image")
    assert run.short(layers) == layers
    run.close()


def test_many_layers_get_names_that_fit_into_one_mount_call(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, "many")
    layers = tuple(tmp_path / ("x" * 60) / str(number) for number in range(60))
    for layer in layers:
        layer.mkdir(parents=True)
    short = run.short(layers)
    assert len({name.parent for name in short}) == 1
    assert len(str(short[0].parent)) <= len(str(tmp_path)) + len("/l/12345")
    assert [name.resolve() for name in short] == [layer.resolve() for layer in layers]
    assert run.short(layers) == short
    run.close()
    assert not short[0].parent.exists()


@pytest.mark.sandbox
def test_a_sandbox_starts_on_sixty_layers_more() -> None:
    async def body(state: Path) -> None:
        backend = NamespaceBackend(SandboxConfig(state_dir=state))
        try:
            image = await backend.prepare(ImageSpec())
            more = tuple(state / "images" / f"{number:024}" for number in range(60))
            for number, layer in enumerate(more):
                (layer / "app").mkdir(parents=True)
                (layer / "app" / str(number)).touch()
            snapshot = replace(image, layers=(*image.layers, *more))
            sandbox = await backend.fork(snapshot, limits=Limits(), label="many")
            assert (await sandbox.run("ls /app | wc -l", 10)).output == "60\n"
        finally:
            await backend.close()

    with tempfile.TemporaryDirectory() as state:  # pytest's own directories have longer names than a state directory
        clock.run(body(Path(state)))


def test_short_names_of_a_dead_run_are_reaped_with_it(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, "dead")
    alias = run.short(tuple(tmp_path / f"{number}{'x' * 200}" for number in range(30)))[0]
    assert alias.is_symlink()
    os.close(run._lock)  # pyright: ignore  # as the kernel does for a process that is gone
    assert reap(tmp_path).runs == (run.name,)
    assert not alias.is_symlink()


@pytest.mark.sandbox
def test_cgroups_of_a_run_whose_directory_was_removed_by_hand_are_reaped(tmp_path: Path) -> None:
    cgroups = Cgroups.detect()
    tops = [hierarchy / PARENT for hierarchy in dict.fromkeys(cgroups.hierarchies.values())]
    if not tops:
        pytest.skip("no cgroup hierarchy is writable here")
    dead, live = RunDirectory(tmp_path, "removed"), RunDirectory(tmp_path, "live")
    for run in (dead, live):
        for top in tops:
            (top / run.name / "sandbox").mkdir(parents=True)
    dead.close()
    assert reap(tmp_path, cgroups).runs == (dead.name,)
    assert not any((top / dead.name).exists() for top in tops)
    assert all((top / live.name).exists() for top in tops)
    cgroups.remove_run(live.name, kill=True)
    live.close()
