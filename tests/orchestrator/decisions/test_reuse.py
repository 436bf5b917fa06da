from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import make_group
from muster.orchestrator.config import ReuseConfig
from muster.orchestrator.decisions.reuse import FLAGGED, ReuseStore, joined
from muster.orchestrator.decisions.staleness import Freshness
from muster.trainer.config import AdvantageConfig
from muster.trainer.objective.advantage import group_advantages
from muster.types import ReadyGroup, Trajectory

RARE = (0.0,) * 15 + (1.0,)  # one success in sixteen
HOPELESS = (0.0,) * 16
ON = ReuseConfig(enabled=True, max_divergence=0.3)


def store(config: ReuseConfig = ON, *, groups: int = 4) -> ReuseStore:
    return ReuseStore(config, per_batch=groups * 16)


def freshness(*steps: float, max_divergence: float | None = None) -> Freshness:
    made = Freshness(8, max_divergence)
    for version, rms in enumerate(steps, start=1):
        made.moved(version, rms)
    return made


def trained(kept: ReuseStore, group: ReadyGroup, grader: str = "d") -> None:
    kept.closed(group, grader=grader)
    kept.settled(group)


def asked(
    kept: ReuseStore, group: ReadyGroup, *, grader: str = "d", step: int = 1, fresh: Freshness | None = None
) -> Trajectory | None:
    kept.closed(group, grader=grader)
    return kept.for_group(group, step, fresh or freshness(0.01))


def test_a_group_that_solved_nothing_is_given_the_earlier_success_as_one_more_member() -> None:
    kept, rare, hopeless = store(), make_group(0, RARE), make_group(1, HOPELESS)
    trained(kept, rare)
    old = asked(kept, hopeless)
    assert old is not None and old.id == rare.members[-1].id
    whole = joined(hopeless, old)
    assert whole.has_gradient and not hopeless.has_gradient
    assert whole.fresh == hopeless.members and whole.reused == (old.id,)
    assert whole.oldest_version == hopeless.oldest_version


def test_a_reused_member_keeps_the_log_probabilities_and_versions_of_those_who_sampled_it() -> None:
    kept, rare = store(), make_group(0, RARE, version=3)
    trained(kept, rare)
    old = asked(kept, make_group(1, HOPELESS, version=5), step=5, fresh=freshness(*[0.01] * 5))
    assert old is not None and old.segments == rare.members[-1].segments and old.oldest_version == 3


def test_advantages_of_a_group_with_a_reused_success_sum_to_zero() -> None:
    kept = store()
    trained(kept, make_group(0, RARE))
    old = asked(kept, make_group(1, HOPELESS))
    assert old is not None
    found = group_advantages(joined(make_group(1, HOPELESS), old), AdvantageConfig(kind="dr_grpo"))
    assert found[old.id] == pytest.approx(16 / 17) and found["g000001.0"] == pytest.approx(-1 / 17)
    assert sum(found.values()) == pytest.approx(0.0, abs=1e-6)


def test_replay_is_off_unless_it_was_asked_for() -> None:
    kept = store(ReuseConfig())
    trained(kept, make_group(0, RARE))
    assert asked(kept, make_group(1, HOPELESS)) is None


def test_a_group_with_a_success_of_its_own_is_given_none() -> None:
    kept = store()
    trained(kept, make_group(0, RARE))
    assert asked(kept, make_group(1, RARE)) is None


def test_a_task_that_is_solved_often_enough_is_not_reused() -> None:
    kept = store()
    trained(kept, make_group(0, (1.0,) * 8))
    assert asked(kept, make_group(1, HOPELESS)) is None  # 8 of 24


def test_the_success_rate_looks_at_recent_attempts_alone() -> None:
    kept = store(ReuseConfig(enabled=True, recent_attempts=16))
    trained(kept, make_group(0, (1.0,) * 8))
    assert asked(kept, make_group(1, HOPELESS)) is not None


def test_no_success_of_another_task_is_given() -> None:
    kept = store()
    trained(kept, make_group(0, RARE))
    assert asked(kept, replace(make_group(1, HOPELESS), task_id="other")) is None


def test_nothing_is_kept_of_a_group_that_is_still_waiting_for_its_batch() -> None:
    """Else one trajectory could be in two groups of the same batch."""
    kept, rare = store(), make_group(0, RARE)
    kept.closed(rare, grader="d")
    assert asked(kept, make_group(1, HOPELESS)) is None


@pytest.mark.parametrize("cause", FLAGGED)
def test_a_flagged_attempt_is_never_reused_whatever_its_verdict(cause) -> None:
    kept, rare = store(), make_group(0, RARE)
    flagged = replace(rare.members[-1], outcome=replace(rare.members[-1].outcome, cause=cause))
    trained(kept, replace(rare, members=(*rare.members[:-1], flagged)))
    assert asked(kept, make_group(1, HOPELESS)) is None


def test_a_success_is_lent_to_one_group_at_a_time() -> None:
    kept = store()
    trained(kept, make_group(0, RARE))
    first = make_group(1, HOPELESS)
    old = asked(kept, first)
    assert old is not None and asked(kept, make_group(2, HOPELESS)) is None
    kept.settled(joined(first, old), dropped="surplus")
    assert asked(kept, make_group(3, HOPELESS)) == old


def test_a_success_is_used_a_bounded_number_of_times() -> None:
    kept = store(ReuseConfig(enabled=True, max_uses=2))
    trained(kept, make_group(0, RARE))
    for submission in (1, 2):
        group = make_group(submission, HOPELESS)
        old = asked(kept, group)
        assert old is not None
        kept.settled(joined(group, old))
    assert asked(kept, make_group(3, HOPELESS)) is None


def test_no_more_are_lent_at_once_than_one_batch_may_hold() -> None:
    kept = ReuseStore(ReuseConfig(enabled=True, max_share=0.125), per_batch=16)  # two
    trained(kept, make_group(0, (0.0,) * 61 + (1.0,) * 3))
    given_ = [asked(kept, make_group(submission, HOPELESS)) for submission in (1, 2, 3)]
    assert [g is not None for g in given_] == [True, True, False]
    assert given_[0] != given_[1]


def test_a_success_beyond_the_divergence_limit_is_not_reused() -> None:
    kept, far = store(), freshness(0.2, 0.2)
    trained(kept, make_group(0, RARE))
    assert asked(kept, make_group(1, HOPELESS, version=2), step=2, fresh=far) is None
    near = freshness(0.1, 0.1)
    assert kept.for_group(make_group(1, HOPELESS), 2, near) is not None


def test_the_schedules_own_limit_holds_for_a_reused_success_too() -> None:
    kept = store()
    trained(kept, make_group(0, RARE))
    assert asked(kept, make_group(1, HOPELESS), fresh=freshness(0.1, max_divergence=0.05)) is None


def test_a_success_that_the_policy_moved_away_from_since_it_was_given_is_refused_before_the_step() -> None:
    kept, group = store(), make_group(1, HOPELESS, version=1)
    trained(kept, make_group(0, RARE))
    old = asked(kept, group, step=1, fresh=freshness(0.2))
    assert old is not None
    assert kept.reason(joined(group, old), 1, freshness(0.2)) is None
    assert kept.reason(joined(group, old), 2, freshness(0.2, 0.2)) == "diverged"
    assert kept.reason(group, 2, freshness(0.2, 0.2)) is None


def test_what_a_forgotten_task_lent_still_counts_until_its_group_is_settled() -> None:
    kept = ReuseStore(ReuseConfig(enabled=True, max_share=0.125), per_batch=8)  # one
    trained(kept, make_group(0, RARE))
    group = make_group(1, HOPELESS)
    old = asked(kept, group)
    assert old is not None
    kept.forget("task")
    other = replace(make_group(2, RARE), task_id="other")
    other = replace(other, members=tuple(replace(m, task_id="other") for m in other.members))
    trained(kept, other)
    assert asked(kept, replace(make_group(3, HOPELESS), task_id="other")) is None
    kept.settled(joined(group, old), dropped="diverged")
    assert asked(kept, replace(make_group(4, HOPELESS), task_id="other")) is not None


def test_what_was_measured_as_too_far_is_not_tried_again() -> None:
    kept = store()
    trained(kept, make_group(0, RARE))
    group = make_group(1, HOPELESS)
    old = asked(kept, group)
    assert old is not None
    kept.settled(joined(group, old), dropped="diverged")
    assert asked(kept, make_group(2, HOPELESS)) is None


def test_when_the_task_or_its_verifier_changed_nothing_of_before_is_used() -> None:
    kept = store()
    trained(kept, make_group(0, RARE), grader="before")
    assert asked(kept, make_group(1, HOPELESS), grader="after") is None


def test_a_group_graded_before_the_change_and_trained_after_it_leaves_nothing() -> None:
    kept, waiting = store(), make_group(0, RARE)
    kept.closed(waiting, grader="before")
    kept.closed(make_group(1, HOPELESS), grader="after")
    kept.settled(waiting)
    assert asked(kept, make_group(2, HOPELESS), grader="after") is None


def test_a_task_that_is_not_trusted_any_more_is_forgotten() -> None:
    kept = store()
    trained(kept, make_group(0, RARE))
    kept.forget("task")
    assert asked(kept, make_group(1, HOPELESS)) is None


def test_a_success_worth_no_more_than_the_groups_failures_is_not_given() -> None:
    kept = store()
    trained(kept, make_group(0, (*HOPELESS, 0.5)))
    nearly = make_group(1, HOPELESS)
    outcome = replace(nearly.members[0].outcome, reward=0.5)
    nearly = replace(nearly, members=(replace(nearly.members[0], outcome=outcome), *nearly.members[1:]))
    assert asked(kept, nearly) is None


def test_the_least_used_success_is_given_and_of_these_the_newest() -> None:
    kept = store()
    for submission in (0, 1):
        trained(kept, make_group(submission, RARE))
    order = []
    for submission in (2, 3, 4):
        group = make_group(submission, HOPELESS)
        old = asked(kept, group)
        assert old is not None
        order.append(old.group_id)
        kept.settled(joined(group, old))
    assert order == ["g000001", "g000000", "g000001"]


def test_memory_is_bounded_and_the_easiest_tasks_make_room_first() -> None:
    kept = store(ReuseConfig(enabled=True, capacity=2, per_task=2))
    trained(kept, make_group(0, RARE))
    for submission in (1, 2, 3):
        trained(kept, replace(make_group(submission, (1.0,) * 8), task_id="easy"))
    assert asked(kept, make_group(4, HOPELESS)) is not None
    state = kept.state()["tasks"]
    assert sum(len(task["kept"]) for task in state.values()) == 2


OUTCOMES = st.lists(st.tuples(st.sampled_from([RARE, HOPELESS, (1.0,) * 16]), st.integers(0, 2)), max_size=12)


@given(OUTCOMES, st.integers(0, 12))
def test_a_resumed_store_decides_as_one_that_was_never_stopped(history, cut) -> None:
    """Through its state as JSON, and trajectories read again by their ids."""
    config = ReuseConfig(enabled=True, recent_attempts=32, per_task=2, capacity=3, max_uses=2)
    known: dict[str, Trajectory] = {}
    continuous = resumed = store(config)
    waiting: list[ReadyGroup] = []
    for submission, (rewards, fate) in enumerate(history):
        if submission == cut:
            state = json.loads(json.dumps(continuous.state()))
            resumed = store(config)
            resumed.restore(state, known.__getitem__, waiting)
        group = make_group(submission, rewards, version=0)
        known |= {m.id: m for m in group.members}
        answers = []
        for kept in dict.fromkeys((continuous, resumed)):
            kept.closed(group, grader="d")
            answers.append(kept.for_group(group, 1, freshness(0.01)))
        first, last = answers[0], answers[-1]
        assert (first and first.id) == (last and last.id)
        whole = joined(group, first) if first is not None else group
        waiting.append(whole)
        if fate < 2:
            ended = waiting.pop(0)
            for kept in dict.fromkeys((continuous, resumed)):
                kept.settled(ended, dropped=(None, "surplus")[fate])
        assert continuous.state() == resumed.state()


@given(OUTCOMES)
def test_only_verified_successes_of_the_task_are_ever_lent_and_never_twice_at_once(history) -> None:
    kept, lent = store(), set[str]()
    waiting: list[ReadyGroup] = []
    for submission, (rewards, fate) in enumerate(history):
        group = make_group(submission, rewards)
        old = asked(kept, group)
        if old is not None:
            assert old.outcome.verdict == "success" and old.task_id == group.task_id
            assert old.id not in lent and not group.has_gradient and len(lent) < 8
            lent.add(old.id)
            group = joined(group, old)
        waiting.append(group)
        if fate < 2:
            ended = waiting.pop(0)
            lent -= set(ended.reused)
            kept.settled(ended, dropped=(None, "too_stale")[fate])
