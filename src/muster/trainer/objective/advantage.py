"""Advantage of an attempt over its siblings.

Law: pure. A baseline is taken over the graded members of one group and nothing else, so that neither another
task's difficulty nor an attempt that infrastructure lost can move it. A trajectory counts once, however many
segments it has. Equal rewards give exactly 0.

    ReadyGroup (graded members only, by its type) ─► rewards_G ─► advantages_G

    grpo      (r - mean) / max(std, floor)    Shao et al. 2024, DeepSeekMath, eq. 3
    dr_grpo   r - mean                        Liu et al. 2025, Understanding R1-Zero-like training, eq. 2
    rloo      r - mean of the others          Ahmadian et al. 2024, Back to basics, eq. 6
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muster.trainer.config import AdvantageConfig
from muster.types import Batch, Floats, ReadyGroup

EQUAL_REWARDS = 1e-6
"""Rewards closer than this are the same reward: a difference of rounding must not become an advantage."""


def advantages(rewards_G: Sequence[float], config: AdvantageConfig) -> Floats:
    """One advantage per member, in units of reward (grpo: of standard deviations).

    Example: `advantages([1, 1, 1, 0], dr_grpo)` is `[0.25, 0.25, 0.25, -0.75]`.
    """
    values_G = np.asarray(rewards_G, dtype=np.float64)
    assert values_G.ndim == 1 and np.isfinite(values_G).all(), values_G
    if len(values_G) < 2 or np.ptp(values_G) <= EQUAL_REWARDS:
        return np.zeros(len(values_G), dtype=np.float32)
    centred_G = values_G - values_G.mean()
    match config.kind:
        case "grpo":
            scaled_G = centred_G / max(float(values_G.std()), config.std_floor)
        case "dr_grpo":
            scaled_G = centred_G
        case "rloo":
            # r_i - (sum - r_i) / (n - 1)  =  n / (n - 1) * (r_i - mean)
            scaled_G = centred_G * len(values_G) / (len(values_G) - 1)
    return scaled_G.astype(np.float32)


def group_advantages(group: ReadyGroup, config: AdvantageConfig) -> dict[str, float]:
    """Trajectory id to advantage, for one group."""
    values_G = advantages(group.rewards, config)
    return {member.id: float(value) for member, value in zip(group.members, values_G, strict=True)}


def batch_advantages(batch: Batch, config: AdvantageConfig) -> dict[str, float]:
    """Trajectory id to advantage, for every member of every group."""
    return {key: value for group in batch.groups for key, value in group_advantages(group, config).items()}
