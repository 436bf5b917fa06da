"""From what was observed to an outcome: the table of docs/design.md, section 5. Law: pure, every row tested.

    decide(runs on the final state, runs on the control) ─► Outcome | run again: FINAL or CONTROL

        final graded                                   SUCCESS or FAILURE by its reward
        final gave no reward twice, control healthy    FAILURE  verifier_broken_by_agent
        control gives no reward either                 INFRA    verifier_fault (or the boundary that failed)
        final disagrees with itself, control healthy   UNKNOWN  evidence_contradictory
        sandbox of a run lost from outside             run again, in the end INFRA
        the scorer cannot tell                         UNKNOWN  unscorable
        tampered                                       FAILURE  tampered

The untouched control decides who is to blame: what also fails without the agent is not the agent's doing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from muster.errors import SandboxLost, boundary
from muster.types import Cause, Evidence, Graded, Outcome, Ungraded, Verdict
from muster.verifier.reward import Problem

BUDGETS = frozenset({Cause.TURN_BUDGET, Cause.TOKEN_BUDGET, Cause.CONTEXT_BUDGET, Cause.TIME_BUDGET})
MAX_INTERRUPTIONS = 2
RUNS_ON_FINAL = 2  # that must agree before the agent is blamed for a broken verifier


class VerifierRun(StrEnum):
    """Verifier run to make next."""

    FINAL = "final"  # the verifier, on a fork of the frozen final state
    CONTROL = "control"  # the verifier, on an untouched sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of the verifier: a finite reward, or a problem. `cause` names the boundary of a failed sandbox."""

    reward: float | None = None
    problem: Problem | None = None
    cause: Cause = Cause.VERIFIER_FAULT
    evidence: Evidence = field(default_factory=dict[str, object])

    def __post_init__(self) -> None:
        assert (self.reward is None) != (self.problem is None), "a reward or a problem"


def decide(finals: Sequence[Attempt], controls: Sequence[Attempt], *, success_reward: float) -> Outcome | VerifierRun:
    """The outcome, or what to run next. `controls` may start with a healthy one remembered from before."""
    interrupted = [a for a in (*finals, *controls) if a.problem is Problem.INTERRUPTED]
    finals = [a for a in finals if a.problem is not Problem.INTERRUPTED]
    controls = [a for a in controls if a.problem is not Problem.INTERRUPTED]
    if len(interrupted) > MAX_INTERRUPTIONS:
        last = interrupted[-1]
        return Ungraded(verdict=Verdict.INFRA, cause=last.cause, evidence=last.evidence)

    # a sandbox that did not start says nothing about the verifier: the first real run counts
    ran = [a for a in finals if a.problem is not Problem.NOT_STARTED]
    if ran and ran[0].problem is Problem.UNSCORABLE:
        return Ungraded(verdict=Verdict.UNKNOWN, cause=Cause.UNSCORABLE, evidence=ran[0].evidence)
    if ran and ran[0].reward is not None:
        return grade(ran[0].reward, success_reward=success_reward, evidence=ran[0].evidence)
    if len(finals) < RUNS_ON_FINAL:
        return VerifierRun.FINAL
    if not controls:
        return VerifierRun.CONTROL
    return _blame(finals, controls[-1])


def _blame(finals: Sequence[Attempt], control: Attempt) -> Outcome:
    evidence = {"final": [_brief(a) for a in finals], "control": _brief(control)}
    if control.reward is None:
        return Ungraded(verdict=Verdict.INFRA, cause=control.cause, evidence=evidence)
    if all(a.reward is None for a in finals):
        return Graded(verdict=Verdict.FAILURE, reward=0.0, cause=Cause.VERIFIER_BROKEN_BY_AGENT, evidence=evidence)
    return Ungraded(verdict=Verdict.UNKNOWN, cause=Cause.EVIDENCE_CONTRADICTORY, evidence=evidence)


def grade(reward: float, *, success_reward: float, evidence: Evidence) -> Graded:
    """A reward of `success_reward` or more is a success."""
    if reward >= success_reward:
        verdict, cause = Verdict.SUCCESS, Cause.VERIFIER_PASSED
    else:
        verdict, cause = Verdict.FAILURE, Cause.VERIFIER_FAILED
    return Graded(verdict=verdict, reward=reward, cause=cause, evidence=evidence)


def tampered(paths: Sequence[str]) -> Graded:
    """The agent changed the toolchain, the tests or the reward channel. `paths` are shown with the outcome."""
    return Graded(verdict=Verdict.FAILURE, reward=0.0, cause=Cause.TAMPERED, evidence={"tampered": list(paths)})


def after_rollout(outcome: Outcome, *, budget: Cause | None) -> Outcome:
    """The outcome of a trajectory whose final state got `outcome`. `budget`: the one that ended it, if any.

    A success stays one. A failing grade gets the budget as its cause; what is graded by other evidence, or not
    graded, keeps its own.
    """
    assert budget is None or budget in BUDGETS, budget
    if budget is not None and isinstance(outcome, Graded) and outcome.cause is Cause.VERIFIER_FAILED:
        return replace(outcome, cause=budget)
    return outcome


def after_loss(error: SandboxLost) -> Outcome:
    """The outcome of a trajectory whose sandbox is gone before its final state was frozen."""
    if error.by_agent:
        return Graded(
            verdict=Verdict.FAILURE,
            reward=0.0,
            cause=Cause.SANDBOX_DESTROYED_BY_AGENT,
            evidence={"error": str(error), **error.evidence},
        )
    return boundary(error)


def _brief(attempt: Attempt) -> dict[str, object]:
    return {"reward": attempt.reward, "problem": attempt.problem, **attempt.evidence}
