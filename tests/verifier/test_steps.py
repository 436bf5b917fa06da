"""Worth of the steps of a task together. Pure."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from factories import infra, make_task
from muster.types import Cause, Graded, Task, TaskStep, Ungraded, Verdict, VerifierSpec
from muster.verifier.attribution import grade as graded
from muster.verifier.steps import Grade, as_task, combine, goes_on, unprepared

Strategy = Literal["mean", "final"]
rewards = st.lists(st.floats(0, 1).map(lambda r: round(r, 3)), min_size=1, max_size=5)
strategies = st.sampled_from(["mean", "final"])


def task(count: int, strategy: Strategy = "mean") -> Task:
    steps = tuple(
        TaskStep(name=f"s{i}", instruction="do", verifier=VerifierSpec(tests=Path(f"/t{i}"))) for i in range(count)
    )
    return replace(make_task(), steps=steps, step_reward=strategy, agent_timeout_s=9.0)


def grade(reward: float, *, cause: Cause | None = None, budget: Cause | None = None) -> Grade:
    outcome = graded(reward, success_reward=1.0, evidence={"run_s": reward})
    if cause is not None:
        outcome = replace(outcome, cause=cause, verdict=Verdict.FAILURE)
    return Grade(step="s", outcome=outcome, turns=1, budget=budget)


@given(rewards, st.integers(0, 3), strategies)
def test_going_further_never_lowers_the_reward_and_success_needs_every_step(
    found: list[float], missing: int, strategy: Strategy
) -> None:
    whole = task(len(found) + missing, strategy)
    outcomes = [combine(whole, [grade(r) for r in found[:n]]) for n in range(1, len(found) + 1)]
    values = [outcome.reward for outcome in outcomes if isinstance(outcome, Graded)]
    assert len(values) == len(found)
    assert all(earlier <= later + 1e-9 for earlier, later in itertools.pairwise(values))
    last = outcomes[-1]
    if strategy == "mean":
        assert (last.verdict is Verdict.SUCCESS) == (missing == 0 and all(r >= 1 for r in found))
    else:
        assert (last.verdict is Verdict.SUCCESS) == (missing == 0 and found[-1] >= 1)
    if missing:
        assert last.verdict is Verdict.FAILURE


@given(rewards, strategies)
def test_a_step_that_was_not_graded_leaves_no_reward_whatever_came_before(
    found: list[float], strategy: Strategy
) -> None:
    outcome = combine(task(len(found) + 2, strategy), [*map(grade, found), Grade(step="s", outcome=infra(), turns=9)])
    assert isinstance(outcome, Ungraded)
    assert outcome.cause is infra().cause


def test_tampering_in_any_step_costs_everything() -> None:
    outcome = combine(task(3), [grade(1.0), grade(0.0, cause=Cause.TAMPERED)])
    assert isinstance(outcome, Graded)
    assert (outcome.reward, outcome.cause) == (0.0, Cause.TAMPERED)


def test_the_cause_is_that_of_the_last_step_or_of_the_first_that_failed_before_it_passed() -> None:
    assert combine(task(3), [grade(0.2), grade(0.1, cause=Cause.TURN_BUDGET)]).cause is Cause.TURN_BUDGET
    outcome = combine(task(3), [grade(1.0), grade(0.2, cause=Cause.VERIFIER_FAILED), grade(1.0)])
    assert outcome.cause is Cause.VERIFIER_FAILED
    assert outcome.evidence["run_s"] == 0.2
    assert combine(task(2), [grade(1.0, budget=Cause.TOKEN_BUDGET)]).cause is Cause.TOKEN_BUDGET


def test_a_next_step_needs_a_fair_grade_a_budget_and_reward_enough() -> None:
    step = task(2).steps[0]
    assert goes_on(grade(0.0), step)
    assert goes_on(grade(0.5), replace(step, min_reward=0.5))
    assert not goes_on(grade(0.49), replace(step, min_reward=0.5))
    strict = replace(step, min_criteria={"style": 0.5})
    assert not goes_on(grade(1.0), strict), "a criterion that the verifier did not write is not met"
    for style, expected in ((0.4, False), (0.5, True)):
        styled = replace(grade(1.0).outcome, evidence={"criteria": {"style": style}})
        assert goes_on(replace(grade(1.0), outcome=styled), strict) is expected
    assert not goes_on(grade(1.0, budget=Cause.TURN_BUDGET), step)
    assert not goes_on(grade(0.0, cause=Cause.TAMPERED), step)
    assert not goes_on(grade(0.0, cause=Cause.VERIFIER_BROKEN_BY_AGENT), step)
    assert not goes_on(Grade(step="s", outcome=infra(), turns=0), step)


def test_a_step_is_a_task_with_its_own_verifier_and_the_tasks_time_where_it_has_none() -> None:
    whole = task(2)
    alone = as_task(whole, replace(whole.steps[1], agent_timeout_s=None))
    assert (alone.verifier, alone.steps, alone.agent_timeout_s) == (whole.steps[1].verifier, (), 9.0)
    assert as_task(whole, replace(whole.steps[1], agent_timeout_s=0.5)).agent_timeout_s == 0.5


def test_an_unprepared_step_is_blamed_on_the_agent_only_with_a_healthy_control() -> None:
    failure = {"what": "setup.sh", "exit_code": 1}
    held = unprepared(task(2), [grade(1.0)], failure, control=None)
    assert (held.verdict, held.cause) == (Verdict.FAILURE, Cause.VERIFIER_BROKEN_BY_AGENT)
    for grades, control in (([grade(1.0)], failure), ([], None)):
        assert unprepared(task(2), grades, failure, control=control).verdict is Verdict.INFRA
