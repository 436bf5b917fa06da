"""Counters and writable layer of a container, if its daemon runs on this machine; else nobody can tell.

Law: finds and reads alone; limits are the daemon's. Both go with the container: what was read last is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from muster.sandbox.cgroup import ACCOUNTING, CONTROLLERS, ROOT, Cgroup
from muster.sandbox.meter import Meter, Reading
from muster.sandbox.port import Counters

T = TypeVar("T", int, float)


@dataclass(slots=True)
class Gauge:
    """Counters of one sandbox over the runs of its container. `upper`: its writable layer on this machine."""

    upper: Path | None = None
    _meter: Meter = field(default_factory=lambda: Meter(_nowhere()))
    _past: Counters = field(default_factory=Counters)  # of earlier runs
    _last: Counters = field(default_factory=Counters)  # of this run, as last seen

    def started(self, container: str, pid: int, upper: str) -> None:
        """The container runs: `pid` of its PID 1 and `upper`, as the daemon says them; neither need exist here."""
        self._past, self._last = self.life(), Counters()
        cgroup = cgroup_of(container, pid)
        self._meter = Meter(cgroup)
        self.upper = Path(upper) if cgroup.directories and upper and Path(upper).is_dir() else None

    def begin(self) -> Reading:
        return self._meter.begin()

    def end(self, reading: Reading, *, disk_bytes: int | None) -> Counters:
        self.life()
        return self._meter.end(reading, disk_bytes=disk_bytes)

    def life(self, *, disk_bytes: int | None = None) -> Counters:
        """Since the sandbox was made."""
        now = self._meter.lifetime(disk_bytes=disk_bytes)
        if now.cpu_s is not None:  # else the container has ended, and its counters with it
            self._last = now
        return replace(_total(self._past, self._last), disk_bytes=disk_bytes)


def cgroup_of(container: str, pid: int, root: Path = ROOT) -> Cgroup:
    """The cgroup of a container's PID 1, by its number on this machine; empty where that is another process."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii").splitlines()
    except OSError:
        return _nowhere()
    unified = (root / "cgroup.controllers").is_file()
    directories: dict[str, Path] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if container in path:
            for name in CONTROLLERS if unified else {*CONTROLLERS, ACCOUNTING} & {*controllers.split(",")}:
                directories[name] = root / path.lstrip("/") if unified else root / name / path.lstrip("/")
    found = {name: path for name, path in directories.items() if path.is_dir()}
    return Cgroup(directories=found, version=2 if unified else 1)


def _nowhere() -> Cgroup:
    return Cgroup(directories={}, version=1)


def _total(earlier: Counters, later: Counters) -> Counters:
    peaks = [p for p in (earlier.peak_memory_bytes, later.peak_memory_bytes) if p is not None]
    return Counters(
        cpu_s=_sum(earlier.cpu_s, later.cpu_s),
        peak_memory_bytes=max(peaks, default=None),
        oom_kills=_sum(earlier.oom_kills, later.oom_kills),
        pids_refused=_sum(earlier.pids_refused, later.pids_refused),
    )


def _sum(a: T | None, b: T | None) -> T | None:
    return b if a is None else a if b is None else a + b
