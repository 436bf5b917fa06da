"""Status of a run at this instant: a frozen snapshot that the live view draws.

Law: `loops.py` makes it, `observe.live.dashboard` draws it, neither knows the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from muster import clock
from muster.engine.port import EngineStatistics
from muster.orchestrator.decisions.groups import SchedulerStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """Sandbox slots in use, forks kept warm, trajectories waiting for a slot."""

    slots: int = 0
    live: int = 0
    warm: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """One frame of the live view.

    `stages` counts live trajectories by the stage they are in; `trainer_state` is a DeviceState value;
    `ready_groups` of `batch_groups` are waiting for the next batch; `live_groups` are being collected.
    """

    run: str
    started: float
    step: int  # batches trained so far
    steps: int
    version: int
    trainer_state: str
    ready_groups: int
    batch_groups: int
    live_groups: int
    stages: Mapping[str, int] = field(default_factory=dict[str, int])
    pool: PoolStatus = field(default_factory=PoolStatus)
    engines: tuple[EngineStatistics, ...] = ()
    tokens_per_s: float = 0.0
    eta_s: float | None = None
    notice: str = ""  # the latest alarm or event, one line


class Progress:
    """Keeps what a frame needs of the frames before it: rates and the time left."""

    def __init__(self, run: str, steps: int) -> None:
        self._run = run
        self._steps = steps
        self._started = clock.now()
        self._step_ends: list[float] = []
        self._tokens: tuple[float, int] | None = None  # (when, generated so far)
        self._rate = 0.0

    def stepped(self) -> None:
        self._step_ends.append(clock.now())

    def status(
        self,
        *,
        scheduler: SchedulerStatistics,
        batch_groups: int,
        stages: Mapping[str, int],
        pool: PoolStatus,
        engines: Sequence[EngineStatistics],
        trainer_state: str,
        step: int,
    ) -> RunStatus:
        self._measure(sum(e.generated_tokens for e in engines))
        return RunStatus(
            run=self._run,
            started=self._started,
            step=step,
            steps=self._steps,
            version=scheduler.version,
            trainer_state=trainer_state,
            ready_groups=scheduler.ready_groups,
            batch_groups=batch_groups,
            live_groups=scheduler.open_groups,
            stages=dict(stages),
            pool=pool,
            engines=tuple(engines),
            tokens_per_s=self._rate,
            eta_s=self._eta(step),
            notice=scheduler.alarm or "",
        )

    def _measure(self, generated: int) -> None:
        now = clock.now()
        if self._tokens is not None and now > self._tokens[0]:
            self._rate = (generated - self._tokens[1]) / (now - self._tokens[0])
        self._tokens = (now, generated)

    def _eta(self, step: int) -> float | None:
        """Seconds left at the pace of the last five steps; None before the first two ended."""
        recent = self._step_ends[-6:]
        if len(recent) < 2:
            return None
        return (recent[-1] - recent[0]) / (len(recent) - 1) * (self._steps - step)
