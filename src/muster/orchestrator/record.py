"""From decisions to journal rows. Law: pure; every field of a row is explained by the row class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from muster.engine.port import EngineStatistics
from muster.journal import BatchRow, DeviceRow, GroupRow, Journal, MetricRow
from muster.metrics import Last, Mean, Metrics, Quantiles, Sum
from muster.orchestrator.decisions.age import policy_age
from muster.orchestrator.decisions.groups import Group
from muster.orchestrator.decisions.staleness import lag
from muster.rollout.keeping import own_tokens
from muster.trainer.port import StepResult
from muster.types import Batch, Graded, PublicationRecord, Trajectory, Verdict


class JournalSink:
    """A `metrics.Sink` that writes into the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._journal.record(*(MetricRow(name=n, step=step, at=at, value=v) for n, v in values.items()))


def group_row(group: Group, now: float) -> GroupRow:
    return GroupRow(
        id=group.id,
        task_id=group.task.id,
        submission=group.submission,
        version=group.version,
        admitted_at=now,
        replaces=group.replaces,
    )


def batch_row(batch: Batch, version: int, *, trainer_free_at: float) -> BatchRow:
    return BatchRow(
        step=batch.step,
        opened_at=batch.opened_at,
        ready_at=batch.ready_at,
        trainer_free_at=trainer_free_at,
        version=version,
        groups=[g.id for g in batch.groups],
        members=[m.id for g in batch.groups for m in g.fresh],
        reused=[id for g in batch.groups for id in g.reused],
    )


def device_rows(statistics: Iterable[EngineStatistics]) -> list[DeviceRow]:
    return [
        DeviceRow(device=s.replica, state=str(i.state), start=i.start, end=i.end)
        for s in statistics
        for i in s.intervals
    ]


def observe_step(
    metrics: Metrics, batch: Batch, result: StepResult, made: Mapping[int, float], *, started: float
) -> None:
    """Add a batch and the step on it to the metrics of step `batch.step`.

    made: version -> when the step that made it ended. started: when this step began.
    """
    lags = [lag([m], batch.step) for g in batch.groups for m in g.fresh]
    values = {
        **result.metrics,
        "ttb_s": batch.ttb_s,
        "step_s": result.duration_s,
        "lag_max": float(max(lags)),
        "lag_mean": float(np.mean(lags)),
    }
    age = policy_age((m for g in batch.groups for m in g.fresh), made, trained_at=started)
    if age is not None:
        values |= {"sampled_age_s": age.sampled_s, "trained_age_s": age.trained_s}
    for name, value in values.items():
        metrics.observe(name, Last(value))


def observe_trajectory(metrics: Metrics, trajectory: Trajectory) -> None:
    """Add an ended attempt to the metrics of the step that is made next."""
    outcome = trajectory.outcome
    metrics.observe("sampled_tokens", Sum(own_tokens(trajectory)))
    metrics.observe("trajectories_infra", Sum(outcome.verdict is Verdict.INFRA))
    metrics.observe("trajectories_unknown", Sum(outcome.verdict is Verdict.UNKNOWN))
    if isinstance(outcome, Graded):
        metrics.observe("reward", Mean.of(outcome.reward))
        metrics.observe("solve_rate", Mean.of(outcome.verdict is Verdict.SUCCESS))


def observe_publication(metrics: Metrics, records: Sequence[PublicationRecord]) -> None:
    """Add the publication of a version to the metrics of the step that trains from it; the last version's are under the
    step that would. Bytes and counts are of all replicas together; a replica whose digest or canary was wrong has no
    record.
    """
    for r in records:
        seconds = {
            "publish_latency_s": r.latency_s,
            "publish_export_s": r.export_s,
            "publish_transfer_s": r.transfer_s,
            "publish_decode_s": max(0.0, r.stage_s - r.transfer_s),
            "publish_commit_s": r.commit_s,
            "pause_s": r.pause_s,
        }
        counts = {
            "publish_bytes": r.size_bytes,
            "publish_held": r.held,
            "publish_finished": r.finished,
            "publish_aborted": r.aborted,
            "recomputed_tokens": r.recomputed_tokens,
            "digest_checks": int(r.digest_equal),
        }
        for name, value in seconds.items():
            metrics.observe(name, Quantiles.of(value))
        for name, value in counts.items():
            metrics.observe(name, Sum(value))
