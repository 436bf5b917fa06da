"""Outcome of a trajectory, and its cause. Only `Graded` has a reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np

Evidence = Mapping[str, Any]


class Verdict(StrEnum):
    """Verdict on an ended trajectory. Only the first two were graded by fact and may carry a reward."""

    SUCCESS = "success"  # the verifier accepted the agent's final state
    FAILURE = "failure"  # the verifier rejected it, or the model's own doing made grading moot
    INFRA = "infra"  # our machinery failed; says nothing about the model
    UNKNOWN = "unknown"  # the evidence is missing or contradicts itself


class Cause(StrEnum):
    """Cause of an outcome. One sentence per value; the report counts by these."""

    VERIFIER_PASSED = "verifier_passed"  # the agent stopped by itself and the verifier accepted
    VERIFIER_FAILED = "verifier_failed"  # the agent stopped by itself and the verifier rejected
    TURN_BUDGET = "turn_budget"  # all turns used; the final state was graded
    TOKEN_BUDGET = "token_budget"  # all generated tokens used; the final state was graded
    CONTEXT_BUDGET = "context_budget"  # the context is full; the final state was graded
    TIME_BUDGET = "time_budget"  # the model's own commands and tokens used up its time; graded
    SANDBOX_DESTROYED_BY_AGENT = "sandbox_destroyed_by_agent"  # its own counters or exit show it
    VERIFIER_BROKEN_BY_AGENT = "verifier_broken_by_agent"  # fails on its state twice, healthy on the control
    TAMPERED = "tampered"  # tests, toolchain or reward channel were touched
    IMAGE_FAILED = "image_failed"  # the task's image could not be built
    SANDBOX_START_FAILED = "sandbox_start_failed"  # the sandbox never answered
    SANDBOX_LOST = "sandbox_lost"  # it vanished with no sign of the model's doing
    ENGINE_FAILED = "engine_failed"  # the engine refused, died or timed out
    PLAYER_FAILED = "player_failed"  # the user's own agent raised, or never came to an end
    VERIFIER_FAULT = "verifier_fault"  # the verifier fails on the untouched control as well
    TRANSPORT = "transport"  # some other boundary failed
    EVIDENCE_CONTRADICTORY = "evidence_contradictory"  # repeated verification disagreed with itself
    EVIDENCE_MISSING = "evidence_missing"  # an error that no rule covers
    UNSCORABLE = "unscorable"  # the scorer says that it cannot tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """An outcome established by fact. The only outcome with a reward.

    Example: `Graded(verdict=Verdict.SUCCESS, reward=1.0, cause=Cause.VERIFIER_PASSED)`
    """

    verdict: Literal[Verdict.SUCCESS, Verdict.FAILURE]
    reward: float
    cause: Cause
    evidence: Evidence = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        assert self.verdict in (Verdict.SUCCESS, Verdict.FAILURE), self.verdict
        assert np.isfinite(self.reward), self.reward


@dataclass(frozen=True, slots=True, kw_only=True)
class Ungraded:
    """An outcome that says nothing about the model. It has no reward attribute, on purpose.

    Example: `Ungraded(verdict=Verdict.INFRA, cause=Cause.SANDBOX_LOST, evidence={"exit": 137})`
    """

    verdict: Literal[Verdict.INFRA, Verdict.UNKNOWN]
    cause: Cause
    evidence: Evidence = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        assert self.verdict in (Verdict.INFRA, Verdict.UNKNOWN), self.verdict


Outcome = Graded | Ungraded
