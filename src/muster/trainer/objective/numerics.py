"""Do engine and trainer compute the same policy? Numerics apart from staleness.

Law: pure. The same tokens, the same version of the weights, scored by both: what differs then is kernels, precision
and quantisation, or a publication that did not happen.

    engine logprobs_T, trainer logprobs_T ─► probe ─► Mismatch ─► alarm

Levels seen in practice: fp32 on both sides k3 about 0; a bf16 engine and an fp32 trainer k3 2e-3, ESS 0.997; weights
that were not loaded mean |difference| 0.2; a broken load k3 2 to 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from muster.trainer.objective.correction import diagnose
from muster.types import Floats

ALARM_K3 = 1e-2
ALARM_ESS = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Difference of two scorings of the same tokens; ratio = trainer / engine."""

    tokens: int
    mean_abs_difference: float  # of log-probabilities
    k3: float
    largest_ratio: float  # either way round
    ess: float

    @property
    def alarming(self) -> bool:
        """More than precision explains: look at the publication before looking at the kernels."""
        return self.k3 > ALARM_K3 or self.ess < ALARM_ESS


def probe(engine: Sequence[Floats], trainer: Sequence[Floats]) -> Mismatch:
    """Compare log-probabilities of the same sequences, one array each. The first entry, which has no past, is 0.

    Example: `probe([scores.logprobs_T], await trainer.score([tokens], temperature=0.7))`
    """
    assert [len(e) for e in engine] == [len(t) for t in trainer], "the same tokens on both sides"
    pairs = [(e[1:], t[1:]) for e, t in zip(engine, trainer, strict=True) if len(e) > 1]
    log_ratio_N = np.concatenate([t - e for e, t in pairs]) if pairs else np.empty(0, dtype=np.float32)
    found = diagnose(log_ratio_N)
    return Mismatch(
        tokens=len(log_ratio_N),
        mean_abs_difference=found.mean_abs_difference,
        k3=found.k3,
        largest_ratio=found.largest_ratio,
        ess=found.ess,
    )
