"""A verifier that is a Python function: `score(trajectory, sandbox) -> float | None`.

    final ─fork─► score(trajectory, sandbox), in time? ─► a finite number, or a problem ─► control ─► Outcome

Law: the function is the task author's, trusted as such, and still may fail: what it raises or returns is data. None
means that it cannot tell: the trajectory is unscorable, never a zero. A plain function runs in a thread and reads the
trajectory; one that wants to look into the sandbox is `async`.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace

from muster import clock, user_code
from muster.errors import ImageError, SandboxError
from muster.sandbox.pool.pool import Lane, Pool
from muster.sandbox.port import Sandbox, Snapshot
from muster.types import Cause, Outcome, Task, Trajectory, Ungraded, Verdict
from muster.verifier.attribution import Attempt, tampered
from muster.verifier.config import VerifierConfig
from muster.verifier.control import Controlled
from muster.verifier.integrity import touched
from muster.verifier.reward import Problem
from muster.verifier.script import failed, for_verifier, tools_of

Score = Callable[[Trajectory, Sandbox], float | Awaitable[float | None] | None]
"""`verifier.score`: a trajectory and a fork of its frozen final state in, a finite reward out; None: it cannot tell."""


def load_score(name: str) -> Score:
    """The function that `module:name` says. Raises `ConfigError`."""
    return user_code.load("verifier.score", name, kind="function", example="my_scores:by_length")


def source_digest(name: str) -> str:
    """Of the file in which the function that `module:name` says is defined: what it graded before an edit of that file
    may not be what it would grade now. Raises `ConfigError`."""
    return user_code.source_digest(load_score(name), name)


class FunctionVerifier:
    """Implements `verifier.port.Verifier`.

    Example:
        async def score(trajectory, sandbox):
            return float(await sandbox.read("/app/answer.txt") == b"42\\n")

        outcome = await FunctionVerifier(pool, VerifierConfig(), score).grade(task, final, pristine, trajectory)
    """

    def __init__(self, pool: Pool, config: VerifierConfig, score: Score) -> None:
        self._pool = pool
        self._config = config
        self._score = score
        self._controlled = Controlled(ttl_s=config.control_ttl_s, success_reward=config.success_reward)

    async def grade(
        self, task: Task, final: Snapshot, pristine: Snapshot, trajectory: Trajectory | None = None
    ) -> Outcome:
        paths = touched(final, pristine, task.verifier.owned)
        if paths:
            return tampered(paths)
        played = trajectory or _nothing_done(task)
        return await self._controlled.outcome(
            task, final, pristine, lambda state: self._attempt(task, state, pristine, played)
        )

    async def _attempt(self, task: Task, state: Snapshot, pristine: Snapshot, trajectory: Trajectory) -> Attempt:
        """On the control, the function sees a trajectory in which nothing was done."""
        if state == pristine:
            trajectory = replace(trajectory, segments=(), turns=())
        clean = for_verifier(state, pristine, task.verifier)
        limits = replace(task.limits, egress=task.verifier.egress)
        try:
            async with self._pool.lease(
                clean,
                limits,
                f"score-{task.id}",
                lane=Lane.VERIFIER,
                toolchain=tools_of(task.verifier, pristine),
            ) as lease:
                started = clock.now()
                attempt = await self._call(trajectory, lease.sandbox)
                run_s = clock.now() - started
        except (SandboxError, ImageError) as error:
            return failed(error)
        times = {"queued_s": lease.queued_s, "start_s": lease.start_s, "run_s": run_s}
        return replace(attempt, evidence={**attempt.evidence, **times})

    async def _call(self, trajectory: Trajectory, sandbox: Sandbox) -> Attempt:
        try:
            async with clock.timeout(self._config.score_timeout_s):
                if inspect.iscoroutinefunction(self._score):
                    value = await self._score(trajectory, sandbox)
                else:
                    value = await asyncio.to_thread(self._score, trajectory, sandbox)
        except TimeoutError:
            return _problem(Problem.TIMED_OUT, f"no answer in {self._config.score_timeout_s:g} s")
        except (SandboxError, ImageError):
            raise
        except ConnectionError as error:  # its own judge or network: no agent reaches that, so nobody there is blamed
            return Attempt(problem=Problem.INTERRUPTED, cause=Cause.TRANSPORT, evidence={"error": repr(error)})
        except Exception as error:  # noqa: BLE001 (someone else's code: its failure is its own, and is shown)
            return _problem(Problem.CRASHED, repr(error))
        if value is None:
            return Attempt(problem=Problem.UNSCORABLE)
        if isinstance(value, bool | int | float) and math.isfinite(value):
            return Attempt(reward=float(value))
        return _problem(Problem.NOT_NUMERIC, f"returned {value!r}")


def _problem(problem: Problem, message: str) -> Attempt:
    return Attempt(problem=problem, evidence={"error": message})


def _nothing_done(task: Task) -> Trajectory:
    unknown = Ungraded(verdict=Verdict.UNKNOWN, cause=Cause.EVIDENCE_MISSING)
    return Trajectory(
        id="",
        group_id="",
        task_id=task.id,
        attempt=0,
        segments=(),
        turns=(),
        spans=(),
        outcome=unknown,
        started=0.0,
        ended=0.0,
    )
