"""Policy objectives, as the coefficient that each token's log-probability receives.

Law: pure. Every objective here reaches the weights through the log-probabilities of the sampled tokens alone, so
its gradient is known without autograd: the trainer runs `logprobs.backward(-coefficients)` and no objective
needs a tensor. `coefficient = d objective / d log pi` at the current weights; ratios are current / proximal.

    log_ratio_N, advantage_N, sequence_N ─► objective ─► coefficients_N, values_N, clipped_N
    kept_N, sequence_N ─► aggregation ─► scale_N, denominator       loss = -sum(scale * value) / sum(denominator)

    ppo      min(r A, clip(r, 1 - low, 1 + high) A)           Schulman et al. 2017, eq. 7
    grpo     the same; mean over tokens, then over sequences  Shao et al. 2024, eq. 3
    dr_grpo  the same; sum over tokens / a constant           Liu et al. 2025: no length bias
    dapo     the same; high > low, mean over tokens           Yu et al. 2025: clip-higher
    cispo    sg(min(r, 1 + high)) A log pi                    Chen et al. 2025, MiniMax-M1: no token falls silent
    gspo     min(s A, clip(s) A), s = exp(mean log r)         Zheng et al. 2025: ratio of the sequence
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.trainer.config import CISPO, GSPO, LossConfig
from muster.trainer.objective.correction import Reals, bounded, sequence_means
from muster.types import Bools, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Per token: d objective / d log pi, the objective's value, and whether clipping silenced or cut it."""

    coefficients_N: Floats
    values_N: Floats
    clipped_N: Bools


def objective(log_ratio_N: Reals, advantage_N: Floats, sequence_N: Ints, config: LossConfig) -> Objective:
    """log_ratio_N = log current - log proximal (0 at the first update of a step), one entry per token."""
    log_ratio_N = bounded(log_ratio_N)
    if isinstance(config, GSPO):
        log_ratio_N = sequence_means(log_ratio_N, sequence_N)[sequence_N]
    ratio_N = np.exp(log_ratio_N)
    low, high = 1.0 - config.epsilon_low, 1.0 + config.epsilon_high
    if isinstance(config, CISPO):
        weight_N = np.minimum(ratio_N, high)
        coefficients_N = values_N = weight_N * advantage_N
        clipped_N = ratio_N > high
    else:
        values_N = np.minimum(ratio_N * advantage_N, np.clip(ratio_N, low, high) * advantage_N)
        clipped_N = ((advantage_N > 0) & (ratio_N > high)) | ((advantage_N < 0) & (ratio_N < low))
        coefficients_N = np.where(clipped_N, 0.0, ratio_N * advantage_N)
    return Objective(
        coefficients_N=coefficients_N.astype(np.float32),
        values_N=values_N.astype(np.float32),
        clipped_N=clipped_N,
    )


def reference_penalty(log_ratio_N: Reals) -> tuple[Floats, Floats]:
    """The k3 penalty to a reference policy; log_ratio_N = log reference - log current.

    Returns its coefficient (minus its derivative by log pi: exp(log_ratio) - 1) and its value, per token.
    """
    log_ratio_N = bounded(log_ratio_N)
    pull_N = np.expm1(log_ratio_N)
    return pull_N.astype(np.float32), (pull_N - log_ratio_N).astype(np.float32)


def aggregation(kept_N: Bools, sequence_N: Ints, config: LossConfig) -> tuple[Floats, float]:
    """Scale of each token and what these tokens add to the denominator. Masked tokens are in neither.

    Row by row: the loss of a batch is the sum of all rows' scaled values over the sum of their denominators.
    """
    counts_S = np.bincount(sequence_N, weights=kept_N)
    scale_N = kept_N.astype(np.float32)
    if config.aggregation == "sequence_mean":
        scale_N /= np.maximum(counts_S, 1.0)[sequence_N].astype(np.float32)
    return scale_N, denominator(counts_S, config)


def denominator(counts_S: npt.NDArray[Any] | Sequence[int], config: LossConfig) -> float:
    """Amount that sequences with these numbers of unmasked tokens add to the denominator.

    Also for sequences that the trainer skips because their advantage is 0: their gradient is 0, their weight is not.
    """
    match config.aggregation:
        case "token_mean":
            return float(np.sum(counts_S))
        case "sequence_mean":
            return float(np.count_nonzero(counts_S))
        case "constant":
            return float(np.count_nonzero(counts_S)) * config.normalizer_tokens
