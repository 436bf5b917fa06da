from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.trainer.config import AdvantageConfig
from muster.trainer.objective.advantage import advantages, batch_advantages, group_advantages
from trainer.tiny import batch, segment, trajectory

KINDS = ["grpo", "dr_grpo", "rloo"]
REWARDS = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=16)


@pytest.mark.parametrize("kind", KINDS)
@given(reward=st.floats(-1e3, 1e3), size=st.integers(1, 16))
def test_equal_rewards_give_exactly_zero(kind, reward, size):
    assert (advantages([reward] * size, AdvantageConfig(kind=kind)) == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@given(rewards=REWARDS)
def test_advantages_of_a_group_sum_to_zero(kind, rewards):
    values_G = advantages(rewards, AdvantageConfig(kind=kind))
    assert abs(float(values_G.sum())) < 1e-3 * max(1.0, float(np.abs(values_G).max()))


@given(rewards=REWARDS)
def test_grpo_never_blows_up_on_almost_equal_rewards(rewards):
    config = AdvantageConfig(kind="grpo", std_floor=0.05)
    spread = float(np.ptp(rewards))
    assert np.abs(advantages(rewards, config)).max() <= spread / 0.05 + 1e-4


def test_a_difference_of_rounding_is_not_an_advantage():
    assert (advantages([0.3, 0.1 + 0.2, 0.3], AdvantageConfig()) == 0).all()


def test_grpo_divides_by_the_standard_deviation_of_the_group():
    np.testing.assert_allclose(advantages([1, 0, 0, 1], AdvantageConfig(kind="grpo")), [1, -1, -1, 1])


def test_dr_grpo_only_subtracts_the_mean():
    values_G = advantages([1, 1, 1, 0], AdvantageConfig(kind="dr_grpo"))
    np.testing.assert_allclose(values_G, [0.25, 0.25, 0.25, -0.75])


def test_rloo_compares_with_the_others_alone():
    np.testing.assert_allclose(advantages([1, 0, 0, 0], AdvantageConfig(kind="rloo")), [1, *[-1 / 3] * 3])


def test_a_trajectory_counts_once_however_many_segments_it_has():
    one = segment([1, 2, 3], [0, 1, 1])
    members = [trajectory(f"g0.{i}", [one] * count, r) for i, (count, r) in enumerate(
        [(5, 1.0), (1, 1.0), (2, 1.0), (1, 0.0)]
    )]  # fmt: skip
    (group,) = batch([members]).groups
    found = group_advantages(group, AdvantageConfig(kind="dr_grpo"))
    assert found == {"g0.0": 0.25, "g0.1": 0.25, "g0.2": 0.25, "g0.3": -0.75}  # rewards have mean 0.75


def test_groups_do_not_see_each_other():
    one = segment([1, 2, 3], [0, 1, 1])
    easy = [trajectory("g0.0", [one], 1.0), trajectory("g0.1", [one], 1.0)]
    mixed = [trajectory("g1.0", [one], 1.0), trajectory("g1.1", [one], 0.0)]
    found = batch_advantages(batch([easy, mixed]), AdvantageConfig(kind="grpo"))
    assert found == {"g0.0": 0.0, "g0.1": 0.0, "g1.0": 1.0, "g1.1": -1.0}
