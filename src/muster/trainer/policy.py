"""From a row's log-probabilities to the gradient they receive, and to what is told about it.

Law: pure, on detached numbers. Three policies are kept apart: behaviour (the engine, as recorded), proximal (the
trainer at the start of the step) and current. Correction is proximal over behaviour; the objective's ratio is current
over proximal.

    current_N, proximal_N, behaviour_N ─► correction, objective, aggregation ─► RowLoss ─► StepTally (whole step)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from muster.trainer.config import TrainerConfig
from muster.trainer.objective.correction import correct, diagnose, k3, limit
from muster.trainer.objective.loss import aggregation, objective, reference_penalty
from muster.trainer.packing import PackedRow
from muster.types import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLoss:
    """gradient_N is d loss / d log pi before division by the sum of the step's denominators."""

    gradient_N: Floats
    loss_sum: float
    denominator: float
    kept_N: Bools
    truncated_N: Bools  # weight cut by the correction
    clipped_N: Bools  # silenced or cut by the objective
    log_ratio_N: Floats  # proximal - behaviour


def row_loss(
    row: PackedRow, current_N: Floats, proximal_N: Floats, reference_N: Floats | None, config: TrainerConfig
) -> RowLoss:
    """proximal_N: log-probabilities at the start of the step; reference_N: of the initial weights, or None."""
    to_behaviour_N = proximal_N - row.behaviour_N
    corrected = correct(to_behaviour_N, row.sequence_N, config.correction)
    if config.divergence_limit is not None:
        corrected = limit(corrected, to_behaviour_N, row.sequence_N, config.divergence_limit)
    compared_N = row.behaviour_N if config.proximal == "behaviour" else proximal_N
    goal = objective(current_N - compared_N, row.advantage_N, row.sequence_N, config.loss)
    coefficients_N, values_N = goal.coefficients_N, goal.values_N
    if reference_N is not None:
        pull_N, penalty_N = reference_penalty(reference_N - current_N)
        coefficients_N = coefficients_N + config.kl_coefficient * pull_N
        values_N = values_N - config.kl_coefficient * penalty_N
    scale_N, denominator = aggregation(corrected.kept_N, row.sequence_N, config.loss)
    scale_N = scale_N * corrected.weights_N
    return RowLoss(
        gradient_N=(-scale_N * coefficients_N).astype(np.float32),
        loss_sum=-float(np.sum(scale_N * values_N)),
        denominator=denominator,
        kept_N=corrected.kept_N,
        truncated_N=corrected.clipped_N,
        clipped_N=goal.clipped_N & corrected.kept_N,
        log_ratio_N=to_behaviour_N,
    )


@dataclass(slots=True, kw_only=True)
class StepTally:
    """Tally of a step, gathered over its rows. `version` is the policy version of the weights before the step."""

    version: int
    rows: list[tuple[PackedRow, RowLoss]] = field(default_factory=list[tuple[PackedRow, RowLoss]])

    def add(self, row: PackedRow, loss: RowLoss) -> None:
        self.rows.append((row, loss))

    def divergence(self) -> dict[int, float]:
        """Mean k3 of each trajectory (index as in its batch) between its behaviour policy and the trainer's."""
        found: dict[int, float] = {}
        for row, loss in self.rows:
            sums_S = np.bincount(row.sequence_N, weights=k3(loss.log_ratio_N))
            counts_S = np.bincount(row.sequence_N)
            for trajectory, mean in zip(row.trajectories_S, sums_S / counts_S, strict=True):
                found[int(trajectory)] = float(mean)
        return found

    def metrics(self) -> dict[str, float]:
        """Divergence over all trained tokens, and apart for those that the present version sampled.

        On fresh tokens trainer and engine hold the same weights, so their difference is numerics; on stale ones it
        is numerics and staleness.
        """
        log_ratio_N = self._joined([loss.log_ratio_N for _, loss in self.rows])
        versions_N = self._joined([row.versions_N for row, _ in self.rows])
        kept_N = self._joined([loss.kept_N for _, loss in self.rows]).astype(np.bool_)
        every, fresh_N = diagnose(log_ratio_N), versions_N == self.version
        metrics = {
            "k1": every.k1,
            "k3": every.k3,
            "m2": every.m2,
            "chi2": every.chi2,
            "ess": every.ess,
            "mean_ratio": every.mean_ratio,
            "largest_ratio": every.largest_ratio,
            "mean_abs_logprob_difference": every.mean_abs_difference,
            "clip_fraction": _fraction([loss.clipped_N for _, loss in self.rows]),
            "truncated_fraction": _fraction([loss.truncated_N for _, loss in self.rows]),
            "dropped_fraction": float(np.mean(~kept_N)) if len(kept_N) else 0.0,
            "trained_tokens": float(kept_N.sum()),
            "fresh_fraction": float(fresh_N.mean()) if len(fresh_N) else 0.0,
            "forward_tokens": float(sum(len(row) for row, _ in self.rows)),
        }
        for name, chosen_N in (("fresh", fresh_N), ("stale", ~fresh_N)):
            if chosen_N.any():
                part = diagnose(log_ratio_N[chosen_N])
                metrics[f"{name}_mean_abs_logprob_difference"] = part.mean_abs_difference
                metrics[f"{name}_k3"] = part.k3
        if len(versions_N):
            metrics["oldest_lag"] = float(self.version - versions_N.min())
        return metrics

    @staticmethod
    def _joined(arrays: list[Floats] | list[Ints] | list[Bools]) -> np.ndarray:
        return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.float32)


def _fraction(masks: list[Bools]) -> float:
    total = sum(len(mask) for mask in masks)
    return float(sum(int(mask.sum()) for mask in masks) / total) if total else 0.0
