"""A verifier on the virtual clock, for the simulator and for tests.

    score(task, state) ─► Attempt (or an injected fault) ─► attribution.decide ─► Outcome, or run again

Law: only the running of a script is fake. Who is blamed is decided by the same pure function as in production.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from muster import clock
from muster.sandbox.port import Snapshot
from muster.types import Cause, Outcome, Task, Trajectory
from muster.verifier.attribution import Attempt, VerifierRun, decide
from muster.verifier.reward import Problem

Score = Callable[[Task, Snapshot], float | Problem]


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeVerifierFaults:
    """Probability of each fault, per run of the verifier."""

    crash: float = 0.0  # no reward, for no reason of the agent's
    hang: float = 0.0  # takes until the task's time-out
    interruption: float = 0.0  # its sandbox vanishes


class FakeVerifier:
    """Implements `verifier.port.Verifier`. `score` gives a reward, or a problem that depends on the state.

    Example: `FakeVerifier(lambda task, state: 1.0 if backend.file(state, "/app/done") else 0.0)`
    """

    def __init__(
        self,
        score: Score,
        *,
        latency_s: float = 0.05,
        success_reward: float = 1.0,
        faults: FakeVerifierFaults | None = None,
        rng: np.random.Generator | None = None,
        injected: Counter[str] | None = None,
    ) -> None:
        """`injected` counts the faults that happened; one may be shared by the whole world."""
        self._score = score
        self._latency_s = latency_s
        self._success_reward = success_reward
        self._faults = faults or FakeVerifierFaults()
        self._rng = rng if rng is not None else np.random.default_rng(0)
        self.injected: Counter[str] = Counter() if injected is None else injected

    async def grade(
        self, task: Task, final: Snapshot, pristine: Snapshot, trajectory: Trajectory | None = None
    ) -> Outcome:
        finals: list[Attempt] = []
        controls: list[Attempt] = []
        while True:
            decision = decide(finals, controls, success_reward=self._success_reward)
            if not isinstance(decision, VerifierRun):
                return decision
            state, attempts = (final, finals) if decision is VerifierRun.FINAL else (pristine, controls)
            attempts.append(await self._attempt(task, state))

    async def _attempt(self, task: Task, state: Snapshot) -> Attempt:
        if self._happens("verifier_hang", self._faults.hang):
            await clock.sleep(task.verifier.timeout_s)
            return Attempt(problem=Problem.TIMED_OUT)
        await clock.sleep(self._latency_s)
        if self._happens("verifier_lost", self._faults.interruption):
            return Attempt(problem=Problem.INTERRUPTED, cause=Cause.SANDBOX_LOST)
        if self._happens("verifier_crash", self._faults.crash):
            return Attempt(problem=Problem.MISSING)
        scored = self._score(task, state)
        evidence = {"queued_s": 0.0, "start_s": 0.0, "run_s": self._latency_s}
        if isinstance(scored, Problem):
            return Attempt(problem=scored, evidence=evidence)
        return Attempt(reward=scored, evidence=evidence)

    def _happens(self, fault: str, probability: float) -> bool:
        if probability > 0 and float(self._rng.random()) < probability:
            self.injected[fault] += 1
            return True
        return False
