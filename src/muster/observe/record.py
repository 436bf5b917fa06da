"""A run's rows, read once and indexed: what the ledgers are computed from.

Law: only reading and joining here, no arithmetic. A journal that a killed or running process left is as good as
any other; the end of a session that never ended is the last instant that it recorded.

    journal ─read─► Record(sessions, groups, launches, drops, trajectories, spans by owner, devices, …)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from muster.journal import (
    BatchRow,
    DeviceRow,
    DropRow,
    EventRow,
    GroupRow,
    Journal,
    LaunchRow,
    MetricRow,
    SessionRow,
    SpanRow,
    StepRow,
    TrajectoryRow,
)
from muster.types import Evaluation, PublicationRecord

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSession:
    """One process that drove the run. `complete` is False if it was killed or is still going."""

    id: int
    start: float
    end: float
    complete: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Everything a report needs. Trajectories come in key order; `spans` are by trajectory id, in time order.

    `batches` were trained, or wait for the trainer in the last session.
    """

    meta: Mapping[str, Any]
    sessions: tuple[RunSession, ...]
    groups: Mapping[str, GroupRow]
    launches: Mapping[str, LaunchRow]
    drops: Mapping[str, DropRow]
    trajectories: Mapping[str, TrajectoryRow]
    spans: Mapping[str, tuple[SpanRow, ...]]
    devices: tuple[DeviceRow, ...]
    batches: tuple[BatchRow, ...]
    steps: tuple[StepRow, ...]
    metrics: Mapping[str, tuple[MetricRow, ...]]
    events: tuple[EventRow, ...]
    publications: tuple[PublicationRecord, ...]
    evaluations: tuple[Evaluation, ...]

    @property
    def trained(self) -> tuple[BatchRow, ...]:
        """Batches whose optimiser step was made."""
        steps = {s.step for s in self.steps}
        return tuple(b for b in self.batches if b.step in steps)

    @property
    def wall_s(self) -> float:
        """Seconds in which some process drove the run."""
        return sum(s.end - s.start for s in self.sessions)

    def setting(self, *path: str) -> Any:
        """A value of the resolved configuration; None where this run's configuration has no such key."""
        value: Any = self.meta.get("config")
        for key in path:
            value = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
        return value


def read(journal: Journal) -> Record:
    """Read a journal whole.

    The order matters while a run writes: what refers is read before what it refers to, so that a trajectory has
    its launch and a trained group its batch.
    """
    rows = Record(
        meta=journal.meta(),
        sessions=(),
        trajectories={t.id: t for t in journal.rows(TrajectoryRow)},
        drops={d.id: d for d in journal.rows(DropRow)},
        launches={row.id: row for row in journal.rows(LaunchRow)},
        groups={g.id: g for g in journal.rows(GroupRow)},
        steps=tuple(journal.rows(StepRow)),
        batches=(),
        spans=_grouped((s.owner, s) for s in journal.rows(SpanRow)),
        devices=tuple(journal.rows(DeviceRow)),
        metrics=_grouped((m.name, m) for m in journal.rows(MetricRow)),
        events=tuple(journal.rows(EventRow)),
        publications=tuple(journal.publications()),
        evaluations=tuple(journal.evaluations()),
    )
    batches = journal.rows(BatchRow)
    sessions = _sessions(journal.rows(SessionRow), _instants(rows, batches))
    return replace(rows, sessions=sessions, batches=_standing(batches, rows.steps, sessions))


def _standing(
    batches: Sequence[BatchRow], steps: Sequence[StepRow], sessions: Sequence[RunSession]
) -> tuple[BatchRow, ...]:
    """Without batches that an earlier session assembled and never trained: resume takes them apart."""
    trained = {s.step for s in steps}
    begun = sessions[-1].start if sessions else 0.0
    return tuple(b for b in batches if b.step in trained or b.opened_at >= begun)


def _sessions(rows: Sequence[SessionRow], instants: Sequence[float]) -> tuple[RunSession, ...]:
    ordered = sorted(rows, key=lambda s: s.started)
    sessions: list[RunSession] = []
    for i, row in enumerate(ordered):
        limit = ordered[i + 1].started if i + 1 < len(ordered) else float("inf")
        seen = max((t for t in instants if row.started <= t < limit), default=row.started)
        sessions.append(
            RunSession(
                id=row.id,
                start=row.started,
                end=row.ended if row.ended is not None else seen,
                complete=row.ended is not None,
                reason=row.reason,
            )
        )
    return tuple(sessions)


def _instants(rows: Record, batches: Sequence[BatchRow]) -> list[float]:
    """Every instant at which something is known to have been recorded."""
    return [
        *(t.ended for t in rows.trajectories.values()),
        *(launch.at for launch in rows.launches.values()),
        *(drop.at for drop in rows.drops.values()),
        *(d.end for d in rows.devices),
        *(b.ready_at for b in batches),
        *(s.ended for s in rows.steps),
        *(e.at for e in rows.events),
        *(e.ended for e in rows.evaluations),
        *(m.at for series in rows.metrics.values() for m in series),
    ]


def _grouped(pairs: Iterable[tuple[str, Item]]) -> dict[str, tuple[Item, ...]]:
    lists: dict[str, list[Item]] = {}
    for key, item in pairs:
        lists.setdefault(key, []).append(item)
    return {key: tuple(items) for key, items in lists.items()}
