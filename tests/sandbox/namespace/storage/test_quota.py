"""Exact quotas: a write past the limit fails at once, and nothing stays mounted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster import clock
from muster.errors import ConfigError
from muster.sandbox.config import MIB
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.namespace.storage.mounts import unmount_below
from muster.sandbox.namespace.storage.quota import MINIMUM_BYTES, Quota, copy_sparse, covered, used_bytes
from muster.sandbox.namespace.storage.state import RunDirectory, reap
from muster.types import ImageSpec, Limits
from sandbox.conftest import OnBackend
from sandbox.namespace.test_leaks import eventually, loops_below, mounts_below

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems: root alone may")
LIMITS = Limits(disk_bytes=16 * MIB)


@needs_root
@pytest.mark.sandbox
def test_a_write_past_the_limit_fails_at_once_and_the_command_goes_on(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await backend.fork(await backend.prepare(ImageSpec()), limits=LIMITS, label="full")
        two_files = "head -c 12M /dev/zero > /app/one; head -c 12M /dev/zero > /app/two; echo $?"
        result = await sandbox.run(two_files, 20)
        assert "No space left on device" in result.output
        assert (result.output.splitlines()[-1], result.exit_code) == ("1", 0)
        written = int((await sandbox.run("cat /app/one /app/two | wc -c", 10)).output)
        assert 14 * MIB < written <= 16 * MIB
        assert (await sandbox.run("rm /app/two; echo small > /app/small; cat /app/small", 10)).output == "small\n"
        counters = await sandbox.close()
        assert counters.disk_bytes is not None
        assert counters.disk_bytes <= 16 * MIB

    on_backend(body, disk_quota="exact")


@needs_root
@pytest.mark.sandbox
def test_a_flood_of_empty_files_ends_as_well(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await backend.fork(await backend.prepare(ImageSpec()), limits=LIMITS, label="flood")
        result = await sandbox.run("cd /app; for n in {1..5000}; do : > $n || break; done 2>&1", 20)
        assert "No space left on device" in result.output

    on_backend(body, disk_quota="exact")


@needs_root
@pytest.mark.sandbox
def test_snapshots_and_forks_keep_their_files_and_nothing_stays_mounted(on_backend: OnBackend, tmp_path: Path) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await backend.fork(await backend.prepare(ImageSpec()), limits=LIMITS, label="parent")
        await sandbox.run("echo frozen > /app/file", 5)
        snapshot = await sandbox.snapshot()
        await sandbox.run("echo changed > /app/file", 5)
        await sandbox.close()
        forks = [await backend.fork(snapshot, limits=LIMITS, label="fork") for _ in range(3)]
        assert [(await fork.run("cat /app/file", 5)).output for fork in forks] == ["frozen\n"] * 3
        assert len(mounts_below(tmp_path)) >= 4
        await backend.discard(snapshot)

    on_backend(body, disk_quota="exact")
    assert mounts_below(tmp_path) == []
    eventually(lambda: loops_below(tmp_path) == [])


@needs_root
@pytest.mark.sandbox
def test_what_a_killed_controller_left_mounted_is_reaped(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, "killed")
    layer = run.new_layer()
    clock.run(Quota(run.path).cover(layer, MINIMUM_BYTES))
    assert covered(layer)
    os.close(run._lock)  # pyright: ignore  # as the kernel does for a process that is gone
    assert reap(tmp_path).runs == (run.name,)
    assert mounts_below(tmp_path) == []
    eventually(lambda: loops_below(tmp_path) == [])


@needs_root
def test_a_layer_of_its_own_file_system_tells_its_size_without_being_walked(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path, "size")
    layer = run.new_layer()
    assert used_bytes(layer) < 8192
    clock.run(Quota(run.path).cover(layer, 8 * MIB))
    before = used_bytes(layer)
    (layer.fs / "file").write_bytes(b"x" * MIB)
    assert MIB <= used_bytes(layer) - before < 1.1 * MIB
    assert unmount_below(layer.root) == 1
    assert not covered(layer)
    run.close()


def test_a_copy_has_the_data_and_the_holes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        for position in (0, 3 * MIB, 9 * MIB):
            file.seek(position)
            file.write(b"data")
        file.truncate(16 * MIB)
    copy_sparse(source, target)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks * 512 < MIB


@pytest.mark.skipif(os.geteuid() == 0, reason="root may have it")
def test_an_ordinary_user_is_told_to_poll(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="polled"):
        Quota(tmp_path)
