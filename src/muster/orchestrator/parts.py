"""Parts of a run, as its loops know them.

Law: data and protocols alone. `app/run.py` chooses the parts, a simulation puts fakes in their place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from muster.engine.port import Replica
from muster.journal import Journal
from muster.metrics import Metrics
from muster.orchestrator.decisions.scheduler import Scheduler
from muster.orchestrator.dispatch import Dispatcher
from muster.orchestrator.status import PoolStatus, RunStatus
from muster.publish.publisher import Publisher
from muster.trainer.config import DivergenceLimit
from muster.trainer.port import Trainer
from muster.types import Evaluation, Ints, Launch, Publication, Version


class TaskSupply(Protocol):
    """Source of tasks, as far as the loops know it."""

    @property
    def quarantined(self) -> Mapping[str, str]: ...

    def fault(self, task_id: str, reason: str) -> bool: ...

    def state(self) -> dict[str, object]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts that the loops drive; chosen by `app/run.py`."""

    journal: Journal
    metrics: Metrics
    scheduler: Scheduler
    curriculum: TaskSupply
    dispatcher: Dispatcher
    trainer: Trainer
    publisher: Publisher
    engines: tuple[Replica, ...]
    retire: Callable[[Publication], None]  # what a publication was transported in is no longer needed
    evaluate: Callable[[int], Awaitable[Evaluation]]  # at a step, pinned to the version that serves
    prefetch: Callable[[Sequence[Launch]], None]  # make sandboxes ready for these
    pool_status: Callable[[], PoolStatus]
    on_status: Callable[[RunStatus], None]
    groups_per_batch: int
    canary: Ints
    temperature: float
    divergence_limit: DivergenceLimit | None = None  # with action refill, batches are measured before the step
    serves: Callable[[Version | None], None] = lambda version: None  # told what the engines must hold; None: changing
