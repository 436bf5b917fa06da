from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from muster.orchestrator.decisions.age import policy_age
from muster.rollout.keeping import CONTINUED
from muster.types import Cause, Graded, Segment, Span, Stage, Trajectory, Verdict


def attempt(versions: list[int], *decoding: tuple[float, float]) -> Trajectory:
    """One prompt token, then a sampled token for each of `versions`."""
    count = len(versions) + 1
    sampled_T = np.array([False] + [True] * len(versions))
    segment = Segment(
        tokens_T=np.zeros(count, np.int32),
        sampled_T=sampled_T,
        logprobs_T=np.zeros(count, np.float32),
        versions_T=np.array([-1, *versions], np.int32),
    )
    return Trajectory(
        id="t",
        group_id="g",
        task_id="task",
        attempt=0,
        segments=(segment,),
        turns=(),
        spans=tuple(Span(owner="t", stage=Stage.DECODE, start=a, end=b) for a, b in decoding),
        outcome=Graded(verdict=Verdict.SUCCESS, cause=Cause.VERIFIER_PASSED, reward=1.0),
        started=0.0,
        ended=100.0,
    )


def test_a_token_is_as_old_as_its_version_was_when_it_was_sampled_and_when_it_is_trained() -> None:
    age = policy_age([attempt([3] * 10, (20.0, 30.0))], {3: 15.0}, trained_at=65.0)
    assert age is not None
    assert (age.sampled_s, age.trained_s, age.tokens) == (pytest.approx(10.0), pytest.approx(50.0), 10)


def test_tokens_lie_evenly_over_the_time_that_was_spent_decoding() -> None:
    """Two of three decoded seconds come first, so that two of three tokens do."""
    age = policy_age([attempt([0, 0, 1], (10.0, 12.0), (50.0, 51.0))], {0: 0.0, 1: 40.0}, trained_at=60.0)
    assert age is not None
    assert age.sampled_s == pytest.approx((10.5 + 11.5 + (50.5 - 40.0)) / 3)
    assert age.trained_s == pytest.approx((60.0 + 60.0 + 20.0) / 3)


def test_without_a_span_a_token_is_taken_to_be_of_the_middle_of_the_attempt() -> None:
    age = policy_age([attempt([0, 0])], {0: 0.0}, trained_at=200.0)
    assert age is not None
    assert age.sampled_s == 50.0


def test_versions_that_nobody_saw_being_made_do_not_count() -> None:
    members = [attempt([0, 1], (10.0, 12.0)), attempt([])]
    age = policy_age(members, {1: 10.0}, trained_at=20.0)
    assert age is not None
    assert (age.sampled_s, age.trained_s, age.tokens) == (pytest.approx(1.5), 10.0, 1)
    assert policy_age(members, {}, trained_at=20.0) is None


def test_tokens_of_a_keep_point_are_left_out() -> None:
    """They were sampled by an attempt that was lost, at times that this one's spans do not tell."""
    continued = attempt([0, 0, 1, 1], (90.0, 92.0))
    outcome = replace(continued.outcome, evidence={CONTINUED: {"sampled_tokens": 2}})
    age = policy_age([replace(continued, outcome=outcome)], {0: 0.0, 1: 80.0}, trained_at=100.0)
    assert age is not None
    assert (age.sampled_s, age.trained_s, age.tokens) == (pytest.approx(11.0), pytest.approx(20.0), 2)
