from __future__ import annotations

from pathlib import Path

import pytest

from muster.sandbox.cgroup import Cgroup, Cgroups, settings
from muster.types import Limits

LIMITS = Limits(cpus=1.5, memory_bytes=1 << 20, pids=7)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            1,
            {
                "memory.limit_in_bytes": "1048576",
                "memory.memsw.limit_in_bytes": "1048576",
                "pids.max": "7",
                "cpu.cfs_quota_us": "150000",
            },
        ),
        (2, {"memory.max": "1048576", "memory.swap.max": "0", "pids.max": "7", "cpu.max": "150000 100000"}),
    ],
)
def test_limits_become_the_files_of_each_version(version: int, expected: dict[str, str]) -> None:
    assert {s.file: s.value for s in settings(LIMITS, version)} == expected
    assert settings(Limits(pids=None), version) == ()


def test_a_host_without_cgroups_gives_groups_that_do_nothing(tmp_path: Path) -> None:
    cgroups = Cgroups.detect(tmp_path)
    group = cgroups.create("run", "1", LIMITS)
    assert group.members_files == ()
    assert (group.oom_kills(), group.peak_memory_bytes(), group.pids_refused()) == (None, None, None)
    assert group.remove()


def test_counters_are_read_in_both_versions(tmp_path: Path) -> None:
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (tmp_path / "memory.max_usage_in_bytes").write_text("4096\n")
    (tmp_path / "memory.events").write_text("low 0\nmax 4\noom 2\noom_kill 2\n")
    (tmp_path / "memory.peak").write_text("8192\n")
    (tmp_path / "pids.events").write_text("max 5\n")
    directories = {"memory": tmp_path, "pids": tmp_path}
    one, two = Cgroup(directories=directories, version=1), Cgroup(directories=directories, version=2)
    assert (one.oom_kills(), one.peak_memory_bytes(), one.pids_refused()) == (3, 4096, 5)
    assert (two.oom_kills(), two.peak_memory_bytes(), two.pids_refused()) == (2, 8192, 5)
