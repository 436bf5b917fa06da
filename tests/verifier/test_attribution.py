"""The table of docs/design.md, section 5, row by row."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from muster.errors import SandboxLost
from muster.types import Cause, Graded, Outcome, Ungraded, Verdict
from muster.verifier.attribution import Attempt, VerifierRun, after_loss, after_rollout, decide, tampered
from muster.verifier.reward import Problem

GOOD = Attempt(reward=1.0)
BAD = Attempt(reward=0.0)
BROKEN = Attempt(problem=Problem.MISSING)
NOT_STARTED = Attempt(problem=Problem.NOT_STARTED, cause=Cause.SANDBOX_START_FAILED)
UNSCORABLE = Attempt(problem=Problem.UNSCORABLE)
LOST = Attempt(problem=Problem.INTERRUPTED, cause=Cause.SANDBOX_LOST)


def outcome(finals: list[Attempt], controls: list[Attempt]) -> tuple[Verdict, Cause] | VerifierRun:
    decision = decide(finals, controls, success_reward=1.0)
    return decision if isinstance(decision, VerifierRun) else (decision.verdict, decision.cause)


@pytest.mark.parametrize(
    ("finals", "controls", "expected"),
    [
        # one run that gives a reward is enough
        ([], [], VerifierRun.FINAL),
        ([GOOD], [], (Verdict.SUCCESS, Cause.VERIFIER_PASSED)),
        ([BAD], [], (Verdict.FAILURE, Cause.VERIFIER_FAILED)),
        # no reward: once more, and then the control
        ([BROKEN], [], VerifierRun.FINAL),
        ([BROKEN, BROKEN], [], VerifierRun.CONTROL),
        ([BROKEN, GOOD], [], VerifierRun.CONTROL),
        # the control decides who is to blame
        ([BROKEN, BROKEN], [BAD], (Verdict.FAILURE, Cause.VERIFIER_BROKEN_BY_AGENT)),
        ([BROKEN, BROKEN], [BROKEN], (Verdict.INFRA, Cause.VERIFIER_FAULT)),
        ([BROKEN, GOOD], [BAD], (Verdict.UNKNOWN, Cause.EVIDENCE_CONTRADICTORY)),
        ([BROKEN, BAD], [BAD], (Verdict.UNKNOWN, Cause.EVIDENCE_CONTRADICTORY)),
        ([BROKEN, GOOD], [BROKEN], (Verdict.INFRA, Cause.VERIFIER_FAULT)),
        # a state on which no sandbox starts
        ([NOT_STARTED], [], VerifierRun.FINAL),
        ([NOT_STARTED, GOOD], [], (Verdict.SUCCESS, Cause.VERIFIER_PASSED)),
        ([NOT_STARTED, NOT_STARTED], [], VerifierRun.CONTROL),
        ([NOT_STARTED, NOT_STARTED], [BAD], (Verdict.FAILURE, Cause.VERIFIER_BROKEN_BY_AGENT)),
        ([NOT_STARTED, NOT_STARTED], [NOT_STARTED], (Verdict.INFRA, Cause.SANDBOX_START_FAILED)),
        # a sandbox lost from outside says nothing: again, but not for ever
        ([LOST], [], VerifierRun.FINAL),
        ([LOST, GOOD], [], (Verdict.SUCCESS, Cause.VERIFIER_PASSED)),
        ([LOST, BROKEN], [], VerifierRun.FINAL),
        ([BROKEN, BROKEN], [LOST], VerifierRun.CONTROL),
        ([LOST, LOST, LOST], [], (Verdict.INFRA, Cause.SANDBOX_LOST)),
        ([BROKEN, LOST, BROKEN], [LOST, LOST], (Verdict.INFRA, Cause.SANDBOX_LOST)),
        # a scorer that cannot tell
        ([UNSCORABLE], [], (Verdict.UNKNOWN, Cause.UNSCORABLE)),
        ([LOST, UNSCORABLE], [], (Verdict.UNKNOWN, Cause.UNSCORABLE)),
        # a healthy control from before saves a run, and changes nothing for a reward
        ([BROKEN, BROKEN], [GOOD], (Verdict.FAILURE, Cause.VERIFIER_BROKEN_BY_AGENT)),
        ([GOOD], [BAD], (Verdict.SUCCESS, Cause.VERIFIER_PASSED)),
    ],
)
def test_runs_lead_to_the_outcome_of_the_table(
    finals: list[Attempt], controls: list[Attempt], expected: tuple[Verdict, Cause] | VerifierRun
) -> None:
    assert outcome(finals, controls) == expected


def test_every_sequence_of_runs_comes_to_an_end() -> None:
    for answers in itertools.product([GOOD, BAD, BROKEN, NOT_STARTED, LOST, UNSCORABLE], repeat=5):
        finals: list[Attempt] = []
        controls: list[Attempt] = []
        rest = iter(answers)
        decision = None
        for _ in range(8):
            decision = decide(finals, controls, success_reward=1.0)
            if isinstance(decision, VerifierRun):
                (finals if decision is VerifierRun.FINAL else controls).append(next(rest, LOST))
        assert not isinstance(decision, VerifierRun), (finals, controls)


def test_the_evidence_of_a_broken_verifier_holds_every_run() -> None:
    decision = decide([BROKEN, BROKEN], [BAD], success_reward=1.0)
    assert isinstance(decision, Graded)
    assert decision.reward == 0.0
    assert decision.evidence["control"]["reward"] == 0.0
    assert [run["problem"] for run in decision.evidence["final"]] == ["missing", "missing"]


def test_tampering_is_a_failure_without_reward() -> None:
    result = tampered(["/lib64"])
    assert (result.verdict, result.reward, result.cause) == (Verdict.FAILURE, 0.0, Cause.TAMPERED)


PASSED = Graded(verdict=Verdict.SUCCESS, reward=1.0, cause=Cause.VERIFIER_PASSED)
FAILED = Graded(verdict=Verdict.FAILURE, reward=0.0, cause=Cause.VERIFIER_FAILED)


@pytest.mark.parametrize("budget", [Cause.TURN_BUDGET, Cause.TOKEN_BUDGET, Cause.CONTEXT_BUDGET, Cause.TIME_BUDGET])
def test_a_spent_budget_is_the_cause_of_a_failing_grade_alone(budget: Cause) -> None:
    assert after_rollout(PASSED, budget=budget) == PASSED
    assert after_rollout(FAILED, budget=budget) == replace(FAILED, cause=budget)
    assert after_rollout(FAILED, budget=None) == FAILED
    unknown: Outcome = Ungraded(verdict=Verdict.UNKNOWN, cause=Cause.EVIDENCE_CONTRADICTORY)
    assert after_rollout(unknown, budget=budget) == unknown
    assert after_rollout(tampered(["/bin"]), budget=budget).cause is Cause.TAMPERED


@pytest.mark.parametrize(
    ("by_agent", "verdict", "cause"),
    [
        (True, Verdict.FAILURE, Cause.SANDBOX_DESTROYED_BY_AGENT),
        (False, Verdict.INFRA, Cause.SANDBOX_LOST),
    ],
)
def test_a_lost_sandbox_is_blamed_on_evidence(by_agent: bool, verdict: Verdict, cause: Cause) -> None:
    result = after_loss(SandboxLost("gone", by_agent=by_agent, evidence={"oom_kills": 1}))
    assert (result.verdict, result.cause) == (verdict, cause)
    assert result.evidence["oom_kills"] == 1
