"""Meter of what a sandbox used while a command ran. Law: reads counters; differences for sums, the highest for peaks.

begin ─► Reading ─(the kernel's peak is reset here, where it can be)─► end ─► Counters
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from muster.sandbox.cgroup import Cgroup
from muster.sandbox.port import Counters

T = TypeVar("T", int, float)


@dataclass(slots=True)
class Reading:
    """Counters when a command began, and the highest memory seen since."""

    cpu_s: float | None
    oom_kills: int | None
    pids_refused: int | None
    peak_memory_bytes: int = 0


class Meter:
    """Meter of one sandbox; several commands may be measured at once, each sees what the whole sandbox does.

    Example: `reading = meter.begin(); ...; counters = meter.end(reading, disk_bytes=None)`
    """

    def __init__(self, cgroup: Cgroup) -> None:
        self._cgroup = cgroup
        self._open: list[Reading] = []
        self._life = Reading(0.0, 0, 0)

    def begin(self) -> Reading:
        self._see_peak()
        self._cgroup.reset_peak_memory()
        reading = Reading(self._cgroup.cpu_s(), self._cgroup.oom_kills(), self._cgroup.pids_refused())
        self._open.append(reading)
        return reading

    def end(self, reading: Reading, *, disk_bytes: int | None) -> Counters:
        """Since `begin`. May be called once for each reading."""
        known = self._see_peak()
        self._open = [other for other in self._open if other is not reading]
        return Counters(
            cpu_s=_since(self._cgroup.cpu_s(), reading.cpu_s),
            peak_memory_bytes=reading.peak_memory_bytes if known else None,
            oom_kills=_since(self._cgroup.oom_kills(), reading.oom_kills),
            pids_refused=_since(self._cgroup.pids_refused(), reading.pids_refused),
            disk_bytes=disk_bytes,
        )

    def lifetime(self, *, disk_bytes: int | None) -> Counters:
        """Since the sandbox was made."""
        known = self._see_peak()
        return Counters(
            cpu_s=self._cgroup.cpu_s(),
            peak_memory_bytes=self._life.peak_memory_bytes if known else None,
            oom_kills=self._cgroup.oom_kills(),
            pids_refused=self._cgroup.pids_refused(),
            disk_bytes=disk_bytes,
        )

    def _see_peak(self) -> bool:
        """Note the kernel's peak wherever it counts. False where the host cannot tell."""
        peak = self._cgroup.peak_memory_bytes()
        if peak is None:
            return False
        for reading in (self._life, *self._open):
            reading.peak_memory_bytes = max(reading.peak_memory_bytes, peak)
        return True


def _since(now: T | None, then: T | None) -> T | None:
    return None if now is None or then is None else now - then
