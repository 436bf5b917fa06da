from __future__ import annotations

from pathlib import Path

from muster.sandbox.cgroup import Cgroup
from muster.sandbox.meter import Meter
from muster.sandbox.port import Counters


class Group:
    """The files of a cgroup v1, written by hand."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.set(cpu_ns=0, peak=0, oom=0, refused=0)
        self.cgroup = Cgroup(directories=dict.fromkeys(("memory", "pids", "cpuacct"), directory), version=1)

    def set(self, *, cpu_ns: int, peak: int, oom: int, refused: int) -> None:
        (self._directory / "cpuacct.usage").write_text(f"{cpu_ns}\n")
        (self._directory / "memory.max_usage_in_bytes").write_text(f"{peak}\n")
        (self._directory / "memory.oom_control").write_text(f"oom_kill_disable 0\noom_kill {oom}\n")
        (self._directory / "pids.events").write_text(f"max {refused}\n")


def test_a_command_is_charged_with_what_happened_while_it_ran(tmp_path: Path) -> None:
    group = Group(tmp_path)
    meter = Meter(group.cgroup)
    group.set(cpu_ns=1_000_000_000, peak=900, oom=1, refused=2)
    reading = meter.begin()
    group.set(cpu_ns=1_500_000_000, peak=300, oom=1, refused=5)
    assert meter.end(reading, disk_bytes=7) == Counters(
        cpu_s=0.5, peak_memory_bytes=300, oom_kills=0, pids_refused=3, disk_bytes=7
    )
    assert meter.lifetime(disk_bytes=None) == Counters(
        cpu_s=1.5, peak_memory_bytes=900, oom_kills=1, pids_refused=5, disk_bytes=None
    )


def test_a_second_command_does_not_take_the_peak_of_the_first(tmp_path: Path) -> None:
    group = Group(tmp_path)
    meter = Meter(group.cgroup)
    first = meter.begin()
    group.set(cpu_ns=0, peak=800, oom=0, refused=0)
    second = meter.begin()
    group.set(cpu_ns=0, peak=200, oom=0, refused=0)
    assert meter.end(second, disk_bytes=None).peak_memory_bytes == 200
    assert meter.end(first, disk_bytes=None).peak_memory_bytes == 800


def test_a_host_without_cgroups_cannot_tell(tmp_path: Path) -> None:
    meter = Meter(Cgroup(directories={}, version=2))
    assert meter.end(meter.begin(), disk_bytes=None) == Counters()
    assert meter.lifetime(disk_bytes=None) == Counters()
