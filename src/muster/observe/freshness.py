"""Staleness of the trained tokens, and drift of the policy meanwhile: per batch, from the tokens themselves.

    tokens ─ lag, in versions ─► distance, by the drift odometer ─ or, exactly ─► what the trainer measured

Law: pure. The trainer takes step k from version k, so a token's lag is `k - its version`. The distance is what
admission goes by: an upper estimate for the oldest token, known before the step. Divergence is what the trainer then
found in its own forward pass (`StepRow`): over all trained tokens, and for each trajectory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from muster.journal import BatchRow, StepRow, TrajectoryRow
from muster.observe.record import Record
from muster.orchestrator.decisions.drift import Odometer, rebuilt


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFreshness:
    """Lag in versions over the sampled tokens of one batch, and what its step measured; None: it did not.

    Lag, distance and tokens are of the members that were sampled for the batch's groups; `reused` counts those that
    were not, and `reused_distance` is of the oldest of them.
    distance: of the oldest token from the trainer, nats (root-mean-square log-ratio), by the odometer; of that,
    `assumed` steps were not measured. rms: the same measured exactly, over all trained tokens.
    worst_k3: of the trajectory that was farthest away.
    published: version that the engines served when the batch became ready.
    difference: mean |log-probability of the trainer - of the engine|, in nats. `fresh_*` is of the tokens that the
    trainer's own version sampled: numerics alone; `stale_*` of the others: numerics and staleness.
    """

    step: int
    published: int
    lag_max: int
    lag_mean: float
    tokens: int
    distance: float | None = None
    assumed: int = 0
    reused: int = 0
    reused_distance: float | None = None
    rms: float | None = None
    worst_k3: float | None = None
    k3: float | None = None
    m2: float | None = None
    ess: float | None = None
    difference: float | None = None
    fresh_difference: float | None = None
    stale_difference: float | None = None
    fresh_k3: float | None = None
    stale_k3: float | None = None
    largest_ratio: float | None = None
    dropped_fraction: float | None = None
    clip_fraction: float | None = None


def freshness(record: Record) -> tuple[BatchFreshness, ...]:
    steps = {s.step: s for s in record.steps}
    odometer = rebuilt(record.steps)
    return tuple(batch_freshness(b, record.trajectories, steps.get(b.step), odometer) for b in record.trained)


def batch_freshness(
    batch: BatchRow, trajectories: Mapping[str, TrajectoryRow], step: StepRow | None, odometer: Odometer
) -> BatchFreshness:
    members = [trajectories[m] for m in batch.members if m in trajectories]
    sums = [_version_sum(t) for t in members]
    tokens = sum(t.sampled_tokens for t in members)
    oldest = _oldest(members, default=batch.step)
    reused = [trajectories[m] for m in batch.reused if m in trajectories]
    metrics = step.metrics if step else {}
    m2 = metrics.get("m2")
    return BatchFreshness(
        step=batch.step,
        published=batch.version,
        lag_max=batch.step - oldest,
        lag_mean=batch.step - sum(sums) / tokens if tokens else 0.0,
        tokens=tokens,
        distance=_distance(odometer, oldest, batch.step),
        assumed=odometer.unknown(oldest, batch.step),
        reused=len(batch.reused),
        reused_distance=_distance(odometer, _oldest(reused, default=0), batch.step) if reused else None,
        rms=m2**0.5 if m2 is not None else None,
        worst_k3=max(step.divergence.values(), default=None) if step else None,
        k3=metrics.get("k3"),
        m2=metrics.get("m2"),
        ess=metrics.get("ess"),
        difference=metrics.get("mean_abs_logprob_difference"),
        fresh_difference=metrics.get("fresh_mean_abs_logprob_difference"),
        stale_difference=metrics.get("stale_mean_abs_logprob_difference"),
        fresh_k3=metrics.get("fresh_k3"),
        stale_k3=metrics.get("stale_k3"),
        largest_ratio=metrics.get("largest_ratio"),
        dropped_fraction=metrics.get("dropped_fraction"),
        clip_fraction=metrics.get("clip_fraction"),
    )


def _oldest(trajectories: Iterable[TrajectoryRow], *, default: int) -> int:
    return min((t.oldest_version for t in trajectories if t.oldest_version is not None), default=default)


def _distance(odometer: Odometer, version: int, step: int) -> float | None:
    """None when no step between the two was measured: nothing is known then."""
    if version < step and odometer.unknown(version, step) == step - version:
        return None
    return odometer.distance(version, step)


def weighted_mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Mean over the values that are known; None when none is."""
    known = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None and w > 0]
    if not known:
        return None
    return float(np.average([v for v, _ in known], weights=[w for _, w in known]))


def _version_sum(trajectory: TrajectoryRow) -> int:
    """Sum of the versions of its sampled tokens; unpacks the tokens only when they span versions."""
    if trajectory.oldest_version is None:
        return 0
    if trajectory.oldest_version == trajectory.newest_version:
        return trajectory.oldest_version * trajectory.sampled_tokens
    segments = trajectory.trajectory().segments
    return int(sum(int(s.versions_T[s.sampled_T].sum()) for s in segments))
