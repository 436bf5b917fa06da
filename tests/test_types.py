from __future__ import annotations

import numpy as np
import pytest

from factories import failure, infra, make_group, make_segment, make_trajectory, success
from muster.types import Cause, Graded, ReadyGroup, Segment, Ungraded, Verdict


def test_only_a_graded_outcome_has_a_reward() -> None:
    assert success().reward == 1.0
    assert not hasattr(infra(), "reward")


def test_an_infrastructure_failure_cannot_be_graded() -> None:
    with pytest.raises(AssertionError):
        Graded(verdict=Verdict.INFRA, reward=0.0, cause=Cause.SANDBOX_LOST)  # type: ignore[arg-type]
    with pytest.raises(AssertionError):
        Ungraded(verdict=Verdict.FAILURE, cause=Cause.VERIFIER_FAILED)  # type: ignore[arg-type]


def test_a_reward_is_finite() -> None:
    with pytest.raises(AssertionError):
        Graded(verdict=Verdict.SUCCESS, reward=float("nan"), cause=Cause.VERIFIER_PASSED)


def test_a_ready_group_refuses_an_ungraded_member() -> None:
    with pytest.raises(AssertionError):
        ReadyGroup(id="g", task_id="t", submission=0, members=(make_trajectory(outcome=infra()),), ready_at=0.0)


def test_gradient_is_a_difference_between_rewards() -> None:
    assert make_group(0, (1.0, 0.0)).has_gradient
    assert not make_group(0, (1.0, 1.0)).has_gradient


def test_every_sampled_token_needs_a_version() -> None:
    with pytest.raises(AssertionError):
        Segment(
            tokens_T=np.zeros(2, np.int32),
            sampled_T=np.array([False, True]),
            logprobs_T=np.zeros(2, np.float32),
            versions_T=np.array([-1, -1], np.int32),
        )


def test_the_oldest_version_is_over_all_segments() -> None:
    old, new = make_segment(version=2), make_segment(version=5)
    trajectory = make_trajectory(outcome=failure())
    assert make_trajectory(version=3).oldest_version == 3
    assert min(int(s.versions_T[s.sampled_T].min()) for s in (old, new)) == 2
    assert trajectory.sampled_tokens == 4
