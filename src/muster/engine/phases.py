"""Phases of one request's time. Pure.

Law: at each instant from arrival to end a request is in exactly one phase, so its `*_s` add up to its life.

    QUEUED ─► PREFILL ─► DECODE ─► ended      RECOMPUTE: preempted for memory, or its cache was lost with its weights
       └─────── PAUSED ◄──► any ───┘
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

Finish = Literal["stop", "length", "abort"]


class Phase(StrEnum):
    QUEUED = "queued"  # not computing yet
    PREFILL = "prefill"  # its prompt is being computed
    RECOMPUTE = "recompute"  # what was computed before is computed again
    DECODE = "decode"  # one token a step
    PAUSED = "paused"  # the engine is paused for new weights


_NOTHING_SPENT = dict.fromkeys(Phase, 0.0)


@dataclass(slots=True)
class RequestTime:
    """A request that arrives during a pause begins in `PAUSED`.

    Example: `time = RequestTime(now)`, `time.enter(Phase.PREFILL, now)`, …, `Completion(..., **time.seconds())`.
    """

    since: float  # when the current phase began
    phase: Phase = Phase.QUEUED
    _resumes_as: Phase = field(init=False, default=Phase.QUEUED)  # the phase that a pause interrupted
    _spent_s: dict[Phase, float] = field(init=False, default_factory=_NOTHING_SPENT.copy)

    def enter(self, phase: Phase, now: float) -> None:
        self._spent_s[self.phase] += max(0.0, now - self.since)
        self.phase, self.since = phase, now

    def pause(self, now: float) -> None:
        self._resumes_as = self.phase
        self.enter(Phase.PAUSED, now)

    def resume(self, now: float) -> None:
        self.enter(self._resumes_as, now)

    def lose(self, now: float) -> None:
        """Record that what it has computed is lost: it is computed again now, or after the pause."""
        if self.phase is Phase.PAUSED:
            self._resumes_as = Phase.RECOMPUTE
        else:
            self.enter(Phase.RECOMPUTE, now)

    def end(self, now: float) -> None:
        self.enter(self.phase, now)

    def seconds(self) -> dict[str, float]:
        """Of the phases that have ended, by the names of a `Completion`."""
        spent_s = self._spent_s
        return {
            "queue_s": spent_s[Phase.QUEUED],
            "prefill_s": spent_s[Phase.PREFILL],
            "recompute_s": spent_s[Phase.RECOMPUTE],
            "decode_s": spent_s[Phase.DECODE],
            "paused_s": spent_s[Phase.PAUSED],
        }
