"""The report: one frozen answer to the six questions, computed from a run's journal.

Law: numbers only. Words are in `sections`, advice and alarms in `advice`, drawing in `text`, `page`, `timeline`.
A run that was killed or is still going is reported with what is there; what is not there is None or empty.

    journal ─read─► Record ─build_report─► Report ─to_json─► JSON
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from muster.journal import Journal, TrajectoryRow
from muster.observe.bias import Bias, bias
from muster.observe.critical_path import BatchTime, batch_time, trajectory_time
from muster.observe.devices import DeviceLedger, device_ledger
from muster.observe.freshness import BatchFreshness, freshness
from muster.observe.outcomes import FLAGGED, Accounting, Groups, Outcomes, account, group_counts, outcomes
from muster.observe.record import Record, RunSession, read
from muster.types import DeviceState, Evaluation, PublicationRecord, Stage, Verdict

STRAGGLERS = 5
INTERESTING = 40

BoundsByBatch = Mapping[int, Mapping[str, float]]
"""Step -> lower bounds of its TTB in seconds, by name; `observe.bounds.fit.bounds_by_batch` computes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A slow trajectory and what it waited for, in seconds by stage."""

    id: str
    task_id: str
    duration_s: float
    verdict: str
    turns: int
    sampled_tokens: int
    parts: Mapping[Stage, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that `muster report` shows of one run. Series are (step, value) in order of steps."""

    name: str
    meta: Mapping[str, Any]
    sessions: tuple[RunSession, ...]
    wall_s: float
    steps: int
    planned_steps: int | None
    batches: tuple[BatchTime, ...]
    bounds: BoundsByBatch
    stragglers: tuple[Straggler, ...]
    freshness: tuple[BatchFreshness, ...]
    correction: Mapping[str, Any] | str | None
    train: Outcomes
    evaluate: Outcomes
    groups: Groups
    accounting: Accounting
    publications: tuple[PublicationRecord, ...]
    evaluations: tuple[Evaluation, ...]
    devices: DeviceLedger
    bias: Bias
    series: Mapping[str, tuple[tuple[int, float], ...]]
    events: tuple[tuple[float, str, str], ...]
    interesting: tuple[TrajectoryRow, ...]  # slowest, failed by infrastructure, unknown, flagged; for the page

    @property
    def ttb_s(self) -> float:
        """Sum over batches."""
        return sum(b.ttb_s for b in self.batches)

    @property
    def trainer_wait_s(self) -> float:
        return sum(b.trainer_wait_s for b in self.batches)

    @property
    def parts(self) -> dict[Stage, float]:
        """Seconds by cause, summed over batches; they sum to `ttb_s`."""
        return _summed(b.parts for b in self.batches)

    @property
    def felt(self) -> dict[Stage, float]:
        """The same while the trainer waited."""
        return _summed(b.felt for b in self.batches)

    @property
    def finished(self) -> bool:
        """The last session ended by itself, not by a kill."""
        return bool(self.sessions) and self.sessions[-1].complete


def build_report(journal: Journal, bounds: BoundsByBatch | None = None) -> Report:
    """Read a run's journal and compute its report. Works on a journal that is still being written."""
    return report_of(read(journal), bounds)


def report_of(record: Record, bounds: BoundsByBatch | None = None) -> Report:
    return Report(
        name=str(record.meta.get("run", "run")),
        meta=record.meta,
        sessions=record.sessions,
        wall_s=record.wall_s,
        steps=len(record.steps),
        planned_steps=record.setting("loop", "steps"),
        batches=_batch_times(record),
        bounds=bounds or {},
        stragglers=_stragglers(record),
        freshness=freshness(record),
        correction=record.setting("trainer", "correction"),
        train=outcomes(record, "train"),
        evaluate=outcomes(record, "evaluate"),
        groups=group_counts(record),
        accounting=account(record),
        publications=record.publications,
        evaluations=record.evaluations,
        devices=device_ledger(record),
        bias=bias(record),
        series=_series(record),
        events=tuple((e.at, e.kind, e.message) for e in record.events),
        interesting=_interesting(record.trajectories.values()),
    )


def to_json(report: Report) -> str:
    """The report as JSON: figures and counts, without device strips and transcripts. Keys are field names."""
    data: dict[str, Any] = {
        "name": report.name,
        "meta": dict(report.meta),
        "sessions": [asdict(s) for s in report.sessions],
        "wall_s": report.wall_s,
        "steps": report.steps,
        "planned_steps": report.planned_steps,
        "ttb_s": report.ttb_s,
        "trainer_wait_s": report.trainer_wait_s,
        "ttb_parts_s": report.parts,
        "felt_parts_s": report.felt,
        "batches": [_batch_json(b, report.bounds.get(b.step, {})) for b in report.batches],
        "stragglers": [asdict(s) for s in report.stragglers],
        "freshness": [asdict(f) for f in report.freshness],
        "correction": report.correction,
        "outcomes": {o.purpose: _outcomes_json(o) for o in (report.train, report.evaluate)},
        "groups": asdict(report.groups),
        "accounting": {**asdict(report.accounting), "clean": report.accounting.clean},
        "publications": [asdict(p) for p in report.publications],
        "evaluations": [asdict(e) for e in report.evaluations],
        "device_seconds": {d: report.devices.seconds(d) for d in report.devices.strips},
        "mean_running": report.devices.mean_running,
        "bias": asdict(report.bias),
        "series": report.series,
        "events": report.events,
    }
    return json.dumps(data, indent=1, ensure_ascii=False)


def _summed(parts: Iterable[Mapping[Stage, float]]) -> dict[Stage, float]:
    sums: dict[Stage, float] = {}
    for part in parts:
        for stage, seconds in part.items():
            sums[stage] = sums.get(stage, 0.0) + seconds
    return sums


def _batch_times(record: Record) -> tuple[BatchTime, ...]:
    """Each batch is given its own groups and those dropped meanwhile: one of these may have been the last to end."""
    by_group: dict[str, list[TrajectoryRow]] = {}
    for t in record.trajectories.values():
        by_group.setdefault(t.group_id, []).append(t)
    launches: dict[str, dict[str, Any]] = {}
    for launch in record.launches.values():
        launches.setdefault(launch.group_id, {})[launch.id] = launch
    times: list[BatchTime] = []
    for batch in record.batches:
        near = [
            g
            for g in record.groups.values()
            if g.id in batch.groups or (g.closed_at is not None and batch.opened_at <= g.closed_at <= batch.ready_at)
        ]
        times.append(
            batch_time(
                batch,
                near,
                {id: x for g in near for id, x in launches.get(g.id, {}).items()},
                (t for g in near for t in by_group.get(g.id, ())),
                record.spans,
            )
        )
    return tuple(times)


def _stragglers(record: Record) -> tuple[Straggler, ...]:
    train = (t for t in record.trajectories.values() if t.purpose == "train")
    slowest = sorted(train, key=lambda t: t.started - t.ended)[:STRAGGLERS]
    return tuple(
        Straggler(
            id=t.id,
            task_id=t.task_id,
            duration_s=t.ended - t.started,
            verdict=t.verdict,
            turns=len(t.turns),
            sampled_tokens=t.sampled_tokens,
            parts=trajectory_time(t, record.launches.get(t.id), record.spans.get(t.id, ())),
        )
        for t in slowest
    )


def _series(record: Record) -> dict[str, tuple[tuple[int, float], ...]]:
    """Metric rows by name; of a step that was taken again after a kill, the last counts."""
    series = {name: {m.step: m.value for m in rows} for name, rows in record.metrics.items()}
    return {name: tuple(sorted(values.items())) for name, values in series.items()}


def _interesting(trajectories: Iterable[TrajectoryRow]) -> tuple[TrajectoryRow, ...]:
    """Flagged, unknown and infrastructure failures first, then the slowest."""
    odd = {Verdict.UNKNOWN: 1, Verdict.INFRA: 2}

    def rank(t: TrajectoryRow) -> tuple[int, float]:
        flagged = t.cause in FLAGGED
        return (0 if flagged else odd.get(Verdict(t.verdict), 3), t.started - t.ended)

    return tuple(sorted(trajectories, key=rank)[:INTERESTING])


def _batch_json(batch: BatchTime, bounds: Mapping[str, float]) -> dict[str, Any]:
    return {
        "step": batch.step,
        "opened_at": batch.opened_at,
        "ready_at": batch.ready_at,
        "ttb_s": batch.ttb_s,
        "collected_s": batch.collected_s,
        "trainer_wait_s": batch.trainer_wait_s,
        "deciding_group": batch.group,
        "deciding_trajectory": batch.trajectory,
        "parts_s": batch.parts,
        "bounds_s": dict(bounds),
    }


def _outcomes_json(counts: Outcomes) -> dict[str, Any]:
    return {
        "launched": counts.launched,
        "ended": counts.ended,
        "dropped": dict(counts.dropped),
        "unfinished": counts.unfinished,
        "difference": counts.difference,
        "causes": [{"verdict": verdict, "cause": cause, "count": n} for (verdict, cause), n in counts.causes.items()],
    }


def device_hours(report: Report) -> dict[DeviceState, float]:
    """Device-hours by state, over all devices."""
    return {state: seconds / 3600.0 for state, seconds in report.devices.seconds().items()}
