"""How old the trained tokens were, and how far the policy had moved: per batch, from the tokens themselves.

Law: pure. The trainer takes step k from version k, so a token's lag is `k - its version`. Divergence is what the
trainer measured in its own forward pass (`StepRow.metrics`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from muster.journal import BatchRow, StepRow, TrajectoryRow
from muster.observe.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFreshness:
    """Lag in versions over the sampled tokens of one batch, and what its step measured; None: it did not.

    published: version that the engines served when the batch became ready.
    difference: mean |log-probability of the trainer - of the engine|, in nats. `fresh_*` is of the tokens that the
    trainer's own version sampled: numerics alone; `stale_*` of the others: numerics and staleness.
    """

    step: int
    published: int
    lag_max: int
    lag_mean: float
    tokens: int
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
    return tuple(batch_freshness(b, record.trajectories, steps.get(b.step)) for b in record.trained)


def batch_freshness(batch: BatchRow, trajectories: Mapping[str, TrajectoryRow], step: StepRow | None) -> BatchFreshness:
    members = [trajectories[m] for m in batch.members if m in trajectories]
    sums = [_version_sum(t) for t in members]
    tokens = sum(t.sampled_tokens for t in members)
    oldest = [t.oldest_version for t in members if t.oldest_version is not None]
    metrics = step.metrics if step else {}
    return BatchFreshness(
        step=batch.step,
        published=batch.version,
        lag_max=batch.step - min(oldest) if oldest else 0,
        lag_mean=batch.step - sum(sums) / tokens if tokens else 0.0,
        tokens=tokens,
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
