"""Measured log-probabilities: scored under the present weights, so that a step need not compute them again.

    measure(groups) ─► items ─┬─ known ──────────────────────────┬─► Divergence of each trajectory
                              └─ missing ─forward pass─► keep() ─┘
    step(batch) ─► items ─ known ─► their log pi at the start of the step            then forget()

Law: nothing outlives the weights that it was computed from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from muster.trainer.objective.correction import diagnose
from muster.trainer.packing import Item
from muster.trainer.port import Divergence
from muster.types import Floats, Ints, Trajectory


class MeasuredScores:
    """Scores by trajectory id and segment. `members` are the trajectories that items name by index."""

    def __init__(self) -> None:
        self._scores: dict[tuple[str, int], tuple[Ints, Floats]] = {}  # the tokens, and log pi of each

    def known(self, items: Iterable[Item], members: Sequence[Trajectory]) -> dict[int, Floats]:
        """Log-probabilities (T,) of the items that were scored, by their segment index."""
        found: dict[int, Floats] = {}
        for item in items:
            kept = self._scores.get((members[item.trajectory].id, item.ordinal))
            if kept is not None and np.array_equal(kept[0], item.data.tokens_T):
                found[item.segment] = kept[1]
        return found

    def keep(self, items: Iterable[Item], members: Sequence[Trajectory], scores: Mapping[int, Floats]) -> None:
        for item in items:
            self._scores[members[item.trajectory].id, item.ordinal] = item.data.tokens_T, scores[item.segment]

    def forget(self) -> None:
        """The weights move."""
        self._scores.clear()


def divergences(
    items: Iterable[Item], members: Sequence[Trajectory], scores: Mapping[int, Floats]
) -> dict[str, Divergence]:
    """Of each trajectory between its behaviour policy and that of `scores`, over the tokens of all its segments."""
    log_ratios: dict[str, list[Floats]] = {}
    for item in items:
        ratio_T = scores[item.segment] - item.data.logprobs_T
        log_ratios.setdefault(members[item.trajectory].id, []).append(ratio_T[item.data.sampled_T])
    found = {id: diagnose(np.concatenate(parts)) for id, parts in log_ratios.items()}
    return {id: Divergence(k3=d.k3, rms=d.m2**0.5) for id, d in found.items()}
