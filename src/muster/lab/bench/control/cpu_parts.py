"""CPU time of a process, by part of the package: a sampling profiler.

    a timer of the process's CPU time ─► the stack at that instant ─► its innermost frame in the package ─► a part

Law: what a part calls in libraries is its own; a frame of no part is passed over for its caller's. Sampling costs
microseconds a millisecond and changes no ratio; counting calls, as cProfile does, would make small functions look dear.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, TracebackType

from muster import clock

_PACKAGE = str(Path(clock.__file__).parent) + "/"
_INTERVAL_S = 0.001
"""Of CPU time; the kernel's tick rounds it up to 4 ms on most machines."""


class CpuParts:
    """Counts samples in `samples` while it is entered; use it in the main thread, once at a time.

    parts: beginning of a module's path in the package ("orchestrator/loops") -> part, the first that fits. Samples
    without any such frame count for `rest`.

    Example: `with CpuParts({"journal/": "journal"}, rest="other") as cpu: ...; cpu.share("journal")`
    """

    def __init__(self, parts: Mapping[str, str], *, rest: str) -> None:
        self.samples: Counter[str] = Counter()
        self._parts = dict(parts)
        self._rest = rest
        self._known: dict[str, str | None] = {}  # file -> part

    def share(self, part: str) -> float:
        """Of all samples; 0 before the first."""
        return self.samples[part] / self.samples.total() if self.samples else 0.0

    def __enter__(self) -> CpuParts:
        self._before = signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, _INTERVAL_S, _INTERVAL_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    def _sample(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            part = self._part(frame.f_code.co_filename)
            if part is not None:
                self.samples[part] += 1
                return
            frame = frame.f_back
        self.samples[self._rest] += 1

    def _part(self, file: str) -> str | None:
        if file not in self._known:
            module = file.removeprefix(_PACKAGE)
            self._known[file] = next((p for start, p in self._parts.items() if module.startswith(start)), None)
        return self._known[file]
