"""Tasks of several steps: what each is on its own, whether the next one comes, and what all are worth together.

    as_task(step) ─► played, frozen, graded ─► Grade ─goes_on─► next step …
                                                 └─────────────► combine(all grades) ─► Outcome

Law: pure. A step that was not reached counts as 0: reaching further must never be worth less. One step that was not
graded by fact leaves the whole trajectory ungraded. A task without steps is a task of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.types import Cause, Graded, Outcome, Task, TaskStep, Ungraded, Verdict

_FAIR = frozenset({Cause.VERIFIER_PASSED, Cause.VERIFIER_FAILED})
"""Causes after which a next step makes sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """Grade of an ended step. `turns`: replies of the trajectory so far. `budget`: the one that ended it, if any."""

    step: str
    outcome: Outcome
    turns: int
    budget: Cause | None = None


def as_task(task: Task, step: TaskStep) -> Task:
    """The task that an agent plays and a verifier grades in this step."""
    return replace(
        task,
        instruction=step.instruction,
        verifier=step.verifier,
        solution=step.solution,
        agent_timeout_s=task.agent_timeout_s if step.agent_timeout_s is None else step.agent_timeout_s,
        steps=(),
    )


def goes_on(grade: Grade, step: TaskStep) -> bool:
    """Whether the next step comes: graded by the script alone, with budget left, and good enough."""
    outcome = grade.outcome
    if not isinstance(outcome, Graded) or grade.budget is not None or outcome.cause not in _FAIR:
        return False
    if step.min_reward is not None and outcome.reward < step.min_reward:
        return False
    criteria = outcome.evidence.get("criteria", {})
    return all(criteria.get(name, -math.inf) >= least for name, least in step.min_criteria.items())


def combine(task: Task, grades: Sequence[Grade], *, ended: Cause = Cause.VERIFIER_FAILED) -> Outcome:
    """The outcome of a trajectory through a task of several steps, of which `grades` were reached.

    It succeeds when every step did (or, under the `final` strategy, when the last one did). `ended`: why no step came
    after one that passed, where no budget says so. The evidence is that of the grade that decided, and a line for each.
    """
    assert grades, "at least one step was graded"
    for grade in grades:
        if isinstance(grade.outcome, Ungraded):
            return replace(grade.outcome, evidence=_evidence(grade, grades))
        if grade.outcome.cause is Cause.TAMPERED:
            return replace(grade.outcome, reward=0.0, evidence=_evidence(grade, grades))
    last = grades[-1]
    decisive = last if not _passed(last) else next((g for g in grades if not _passed(g)), last)
    evidence = _evidence(decisive, grades)
    reached_all = len(grades) == len(task.steps)
    if task.step_reward == "final":
        reward = _reward(last) if reached_all else 0.0
        passed = reached_all and _passed(last)
    else:
        reward = sum(map(_reward, grades)) / len(task.steps)
        passed = reached_all and all(map(_passed, grades))
    if passed:
        return Graded(verdict=Verdict.SUCCESS, reward=reward, cause=Cause.VERIFIER_PASSED, evidence=evidence)
    stopped = _passed(last) and not reached_all
    cause = (last.budget or ended) if stopped else decisive.outcome.cause
    return Graded(verdict=Verdict.FAILURE, reward=reward, cause=cause, evidence=evidence)


def unprepared(
    task: Task, grades: Sequence[Grade], failure: Mapping[str, Any], *, control: Mapping[str, Any] | None
) -> Outcome:
    """The outcome when the next step could not be set up. `control`: the same on an untouched sandbox, None if well.

    A set-up may rest on what earlier steps were to leave; where one of them failed, that is reason enough. Else the
    control says whether the agent's files or the task itself are to blame.
    """
    evidence = {"set_up": dict(failure)}
    if grades and not all(map(_passed, grades)):
        return _with(combine(task, grades), evidence)
    if grades and control is None:
        return _with(combine(task, grades, ended=Cause.VERIFIER_BROKEN_BY_AGENT), evidence)
    evidence |= {"control": dict(control)} if control is not None else {}
    return Ungraded(
        verdict=Verdict.INFRA, cause=Cause.IMAGE_FAILED, evidence={**evidence, "steps": [_line(g) for g in grades]}
    )


def needs_control(grades: Sequence[Grade]) -> bool:
    """Whether a failed set-up has to be tried on an untouched sandbox before anyone is blamed."""
    return bool(grades) and all(map(_passed, grades))


def _passed(grade: Grade) -> bool:
    return grade.outcome.verdict is Verdict.SUCCESS


def _reward(grade: Grade) -> float:
    assert isinstance(grade.outcome, Graded)
    return grade.outcome.reward


def _evidence(grade: Grade, grades: Sequence[Grade]) -> dict[str, Any]:
    return {**grade.outcome.evidence, "steps": [_line(g) for g in grades]}


def _line(grade: Grade) -> dict[str, Any]:
    outcome = grade.outcome
    reward = outcome.reward if isinstance(outcome, Graded) else None
    return {"step": grade.step, "reward": reward, "cause": str(outcome.cause), "turns": grade.turns}


def _with(outcome: Outcome, evidence: Mapping[str, Any]) -> Outcome:
    return replace(outcome, evidence={**outcome.evidence, **evidence})
