"""The gap between the policy that sampled and the policy that learns: importance weights and masks.

Law: pure, on detached numbers. The behaviour policy is the engine's, with its own kernels, precision and
version; the proximal policy is the trainer's at the start of the step. A weight multiplies a token's gradient; a
masked token leaves the numerator and the denominator alike.

    log_ratio_N = log proximal - log behaviour ─► correct ─► weights_N, kept_N ─► diagnose

A sequence is a trajectory: all its trained tokens, over all its segments.

    token_tis        w = min(r, cap)                            truncated: Espeholt et al. 2018, IMPALA
    token_mask       w = r, masked where r > cap                masked importance sampling
    icepop           w = r, masked outside [low, high]          Zhao et al. 2025, IcePop
    sequence_tis     w = min(product of r, cap)                 unbiased over sequences, high variance
    geometric_mask   w = min(r, cap), sequences masked where exp(mean log r) is outside [low, high]
                     (a product rejects long sequences for being long; a geometric mean does not)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.trainer.config import (
    CorrectionConfig,
    DivergenceLimit,
    GeometricMask,
    IcePop,
    NoCorrection,
    SequenceTIS,
    TokenMask,
    TokenTIS,
)
from muster.types import Bools, Floats, Ints

Reals = npt.NDArray[np.floating[Any]]
"""Numbers in single or double precision: arithmetic here is double, what is kept is single."""

_LARGEST_LOG_RATIO = 20.0
"""exp(20) is 5e8: far outside any window, and finite in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """weights_N multiply each token's gradient (0 where masked); kept_N is False where masked."""

    weights_N: Floats
    kept_N: Bools
    clipped_N: Bools  # weight cut down to a cap, though kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """Divergence of two policies on n sampled tokens, r = new / old.

    k1 = mean(-log r) and k3 = mean(r - 1 - log r) estimate KL(old | new), k3 without negative values
    (Schulman 2020); m2 = mean (log r)^2; chi2 = mean r^2 - 1; ess = (sum r)^2 / (n sum r^2), 1 when equal.
    """

    k1: float
    k3: float
    m2: float
    chi2: float
    ess: float
    mean_ratio: float
    largest_ratio: float  # of new / old and old / new
    mean_abs_difference: float  # of log-probabilities


NO_DIVERGENCE = Diagnostics(
    k1=0.0, k3=0.0, m2=0.0, chi2=0.0, ess=1.0, mean_ratio=1.0, largest_ratio=1.0, mean_abs_difference=0.0
)


def correct(log_ratio_N: Reals, sequence_N: Ints, config: CorrectionConfig) -> Corrected:
    """Weights and mask for n tokens. sequence_N: which sequence (0..S-1) each token belongs to."""
    log_ratio_N = bounded(log_ratio_N)
    ratio_N = np.exp(log_ratio_N)
    everything_N = np.ones(len(ratio_N), dtype=np.bool_)
    match config:
        case NoCorrection():
            return _corrected(np.ones_like(ratio_N), everything_N)
        case TokenTIS(cap=cap):
            return _corrected(np.minimum(ratio_N, cap), everything_N, ratio_N > cap)
        case TokenMask(cap=cap):
            return _corrected(ratio_N, ratio_N <= cap)
        case IcePop(low=low, high=high):
            return _corrected(ratio_N, (ratio_N >= low) & (ratio_N <= high))
        case SequenceTIS(cap=cap):
            product_N = np.exp(bounded(_sums(log_ratio_N, sequence_N)))[sequence_N]
            return _corrected(np.minimum(product_N, cap), everything_N, product_N > cap)
        case GeometricMask(low=low, high=high, cap=cap):
            mean_N = np.exp(sequence_means(log_ratio_N, sequence_N))[sequence_N]
            kept_N = (mean_N >= low) & (mean_N <= high)
            return _corrected(np.minimum(ratio_N, cap), kept_N, kept_N & (ratio_N > cap))


def limit(corrected: Corrected, log_ratio_N: Reals, sequence_N: Ints, config: DivergenceLimit) -> Corrected:
    """Drop or scale down the sequences whose mean k3 is over the limit. Refilling was done before, or not needed."""
    if config.action == "refill":
        return corrected
    k3_N = sequence_means(k3(log_ratio_N), sequence_N)[sequence_N]
    over_N = k3_N > config.max_k3
    if config.action == "drop":
        return _corrected(corrected.weights_N, corrected.kept_N & ~over_N, corrected.clipped_N & ~over_N)
    scale_N = np.where(over_N, config.max_k3 / np.maximum(k3_N, config.max_k3), 1.0)
    return _corrected(corrected.weights_N * scale_N, corrected.kept_N, corrected.clipped_N | over_N)


def diagnose(log_ratio_N: Reals) -> Diagnostics:
    """Divergence between two policies from the log-ratio of their probabilities on sampled tokens."""
    if len(log_ratio_N) == 0:
        return NO_DIVERGENCE
    log_ratio_N = bounded(log_ratio_N)
    ratio_N = np.exp(log_ratio_N)
    second_moment = float(np.mean(ratio_N**2))
    return Diagnostics(
        k1=float(-log_ratio_N.mean()),
        k3=float(k3(log_ratio_N).mean()),
        m2=float(np.mean(log_ratio_N**2)),
        chi2=second_moment - 1.0,
        ess=float(ratio_N.mean() ** 2 / second_moment),
        mean_ratio=float(ratio_N.mean()),
        largest_ratio=float(np.exp(np.abs(log_ratio_N).max())),
        mean_abs_difference=float(np.abs(log_ratio_N).mean()),
    )


def k3(log_ratio_N: Reals) -> Reals:
    """r - 1 - log r, per token: never negative, 0 only where the policies agree."""
    log_ratio_N = bounded(log_ratio_N)
    return np.expm1(log_ratio_N) - log_ratio_N


def sequence_means(values_N: Reals, sequence_N: Ints) -> Reals:
    """Mean of each sequence's tokens; 0 for a sequence without any."""
    counts_S = np.bincount(sequence_N)
    return _sums(values_N, sequence_N) / np.maximum(counts_S, 1)


def _sums(values_N: Reals, sequence_N: Ints) -> Reals:
    return np.bincount(sequence_N, weights=values_N).astype(np.float64)


def bounded(log_ratio_N: Reals) -> Reals:
    """Double precision, within +-20, so that its exponential is finite."""
    return np.clip(np.asarray(log_ratio_N, dtype=np.float64), -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)


def _corrected(weights_N: Reals, kept_N: Bools, clipped_N: Bools | None = None) -> Corrected:
    return Corrected(
        weights_N=np.where(kept_N, weights_N, 0.0).astype(np.float32),
        kept_N=kept_N,
        clipped_N=np.zeros_like(kept_N) if clipped_N is None else clipped_N,
    )
