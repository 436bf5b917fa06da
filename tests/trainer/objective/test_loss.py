from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from muster.trainer.config import CISPO, DAPO, GRPO, GSPO, PPO, DrGRPO
from muster.trainer.objective.loss import aggregation, denominator, objective, reference_penalty

N = 12
LOG_RATIOS = hnp.arrays(np.float64, N, elements=st.floats(-2, 2))
ADVANTAGES = hnp.arrays(np.float32, N, elements=st.floats(-3, 3, width=32))
SEQUENCE_N = np.repeat([0, 1, 2], [3, 4, 5]).astype(np.int32)


def autograd(log_ratio_N, advantage_N, config):
    """d(sum of the objective, weighted as aggregation would)/d log pi, from the textbook formula."""
    x = torch.tensor(log_ratio_N, dtype=torch.float64, requires_grad=True)
    a = torch.tensor(advantage_N, dtype=torch.float64)
    low, high = 1 - config.epsilon_low, 1 + config.epsilon_high
    if isinstance(config, GSPO):
        total = torch.zeros((), dtype=torch.float64)
        for s in range(3):
            here = torch.tensor(s == SEQUENCE_N)
            ratio = x[here].mean().exp()
            per_token = torch.minimum(ratio * a[here], ratio.clamp(low, high) * a[here])
            total = total + per_token.sum()
    elif isinstance(config, CISPO):
        total = (x.exp().clamp(max=high).detach() * a * x).sum()
    else:
        ratio = x.exp()
        total = torch.minimum(ratio * a, ratio.clamp(low, high) * a).sum()
    (gradient,) = torch.autograd.grad(total, x)
    return gradient.numpy()


@pytest.mark.parametrize("config", [PPO(), GRPO(), DrGRPO(), DAPO(), CISPO()], ids=lambda c: c.kind)
@given(log_ratio_N=LOG_RATIOS, advantage_N=ADVANTAGES)
def test_coefficients_are_the_derivative_of_the_objective(config, log_ratio_N, advantage_N):
    found = objective(log_ratio_N, advantage_N, SEQUENCE_N, config)
    expected = autograd(log_ratio_N, advantage_N, config)
    edges = [np.log(1 - config.epsilon_low or 1), np.log(1 + config.epsilon_high)]
    smooth = np.all([np.abs(log_ratio_N - edge) > 1e-6 for edge in edges], axis=0) & (advantage_N != 0)
    np.testing.assert_allclose(found.coefficients_N[smooth], expected[smooth], rtol=1e-4, atol=1e-5)


@given(scale=st.floats(-1e-3, 1e-3), advantage=st.floats(0.1, 2))
def test_gspo_coefficients_are_the_derivative_for_the_whole_sequence(scale, advantage):
    # within a sequence the advantage is one number, as in training
    log_ratio_N = scale * np.linspace(-1, 2, N)
    advantage_N = np.array([advantage, -advantage, advantage], np.float32)[SEQUENCE_N]
    found = objective(log_ratio_N, advantage_N, SEQUENCE_N, GSPO())
    np.testing.assert_allclose(found.coefficients_N, autograd(log_ratio_N, advantage_N, GSPO()), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("config", [PPO(), GRPO(), DrGRPO(), DAPO(), CISPO(), GSPO()], ids=lambda c: c.kind)
@given(advantage_N=ADVANTAGES)
def test_at_equal_policies_every_objective_is_the_plain_policy_gradient(config, advantage_N):
    found = objective(np.zeros(N), advantage_N, SEQUENCE_N, config)
    np.testing.assert_allclose(found.coefficients_N, advantage_N, rtol=1e-6)
    assert not found.clipped_N.any()


def test_dapo_lets_a_good_token_rise_further_than_it_may_fall():
    ratio_N = np.full(N, 1.25)
    good = np.ones(N, dtype=np.float32)
    assert objective(np.log(ratio_N), good, SEQUENCE_N, GRPO()).clipped_N.all()
    assert not objective(np.log(ratio_N), good, SEQUENCE_N, DAPO()).clipped_N.any()


def test_cispo_cuts_a_token_but_never_silences_it():
    found = objective(np.log(np.full(N, 9.0)), np.ones(N, np.float32), SEQUENCE_N, CISPO(epsilon_high=1.0))
    assert found.clipped_N.all() and (found.coefficients_N == 2).all()


def test_masked_tokens_leave_numerator_and_denominator():
    kept_N = np.ones(N, dtype=np.bool_)
    kept_N[:3] = False  # all of sequence 0
    kept_N[3] = False  # one of sequence 1
    scale_N, tokens = aggregation(kept_N, SEQUENCE_N, DAPO())
    assert tokens == 8 and (scale_N == kept_N).all()
    scale_N, sequences = aggregation(kept_N, SEQUENCE_N, GRPO())
    assert sequences == 2
    np.testing.assert_allclose(scale_N, [0, 0, 0, 0, *[1 / 3] * 3, *[1 / 5] * 5])


def test_sequence_mean_weighs_every_trajectory_alike_and_token_mean_every_token():
    kept_N = np.ones(N, dtype=np.bool_)
    scale_N, total = aggregation(kept_N, SEQUENCE_N, GRPO())
    np.testing.assert_allclose(np.bincount(SEQUENCE_N, weights=scale_N) / total, [1 / 3] * 3, rtol=1e-6)
    scale_N, total = aggregation(kept_N, SEQUENCE_N, DAPO())
    np.testing.assert_allclose(np.bincount(SEQUENCE_N, weights=scale_N) / total, np.array([3, 4, 5]) / 12)


def test_dr_grpo_divides_by_a_constant_so_that_length_has_no_influence():
    assert denominator([3, 400], DrGRPO(normalizer_tokens=100)) == 200


def test_the_reference_penalty_pulls_back_to_the_reference():
    pull_N, penalty_N = reference_penalty(np.array([-0.5, 0.0, 0.5]))
    assert pull_N[0] < 0 == pull_N[1] < pull_N[2]  # more likely than the reference: pushed down
    assert penalty_N[1] == 0 and (penalty_N[[0, 2]] > 0).all()
    step = 1e-4
    _, moved_N = reference_penalty(np.array([-0.5, 0.0, 0.5]) - step)  # log pi rises by step
    np.testing.assert_allclose((moved_N - penalty_N) / step, -pull_N, atol=1e-3)
