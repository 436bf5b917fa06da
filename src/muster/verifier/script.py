"""The script verifier: the task's `tests/test.sh` in a fork of the frozen final state.

    final ─fork─► /tests read-only, /logs/verifier a fresh host directory ─► bash /tests/test.sh ─► reward file
                                                                                     │ host side, no links
    attribution.decide ◄─────────────────────────── Attempt ◄────────────────────────┘
         └─► Outcome, or run once more on the final state, or on the untouched control

Law: nothing of the agent but its files takes part: no process, no shell state, no environment. The script's
exit code says nothing. Runs use the pool's verifier lane, so that grading never waits behind agents. A healthy
control is remembered per task and state for a while; a broken one is asked again each time.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from muster import clock
from muster.errors import SandboxError, SandboxLost, SandboxStartError
from muster.sandbox.files import read_inside
from muster.sandbox.pool import Lane, Pool
from muster.sandbox.port import Mount, Result, Snapshot
from muster.types import Cause, Outcome, Task, Trajectory
from muster.verifier.attribution import Attempt, Step, decide, tampered
from muster.verifier.integrity import touched
from muster.verifier.reward import Problem, parse

_SCRIPT = "/usr/bin/bash --noprofile --norc /tests/test.sh"
# packages that an agent installed for its user must not load into the tests' interpreter
_ENV = {"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


class VerifierConfig(BaseModel):
    """How final states are graded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    success_reward: float = Field(default=1.0, description="a reward of at least this is a success")
    control_ttl_s: float = Field(default=600.0, ge=0, description="how long a healthy control run is believed")
    reward_cap_bytes: int = Field(default=65_536, ge=16, description="a larger reward file is refused")
    evidence_chars: int = Field(default=1000, ge=0, description="of the script's output kept with the outcome")
    scratch_dir: Path | None = Field(
        default=None, description="where the directories mounted at /logs/verifier are made; None: the system's"
    )


class ScriptVerifier:
    """Implements `verifier.port.Verifier`.

    Example: `outcome = await ScriptVerifier(pool, VerifierConfig()).grade(task, final, pristine)`

    The evidence of an outcome holds `queued_s`, `start_s` and `run_s` of the run that counted.
    """

    def __init__(self, pool: Pool, config: VerifierConfig) -> None:
        self._pool = pool
        self._config = config
        self._healthy: dict[tuple[str, str], tuple[float, Attempt]] = {}

    async def grade(
        self, task: Task, final: Snapshot, pristine: Snapshot, trajectory: Trajectory | None = None
    ) -> Outcome:
        paths = touched(final, pristine)
        if paths:
            return tampered(paths)
        finals: list[Attempt] = []
        controls = self._remembered(task, pristine)
        while True:
            decision = decide(finals, controls, success_reward=self._config.success_reward)
            if not isinstance(decision, Step):
                return decision
            if decision is Step.FINAL:
                finals.append(await self._attempt(task, final, pristine))
            else:
                controls.append(await self._attempt(task, pristine, pristine))
                self._remember(task, pristine, controls[-1])

    async def _attempt(self, task: Task, state: Snapshot, pristine: Snapshot) -> Attempt:
        """One run over the files of `state`, in the environment of the untouched image."""
        scratch = Path(tempfile.mkdtemp(prefix="muster-verify-", dir=self._config.scratch_dir))
        clean = replace(
            state,
            workdir=pristine.workdir,
            env={**pristine.env, **_ENV, **task.verifier.env},
            shell_state="",
        )
        mounts = (
            Mount(source=task.verifier.tests.resolve(), target="/tests"),
            Mount(source=scratch, target="/logs/verifier", writable=True),
        )
        try:
            label = f"verify-{task.id}"
            async with self._pool.lease(clean, task.limits, label, mounts=mounts, lane=Lane.VERIFIER) as lease:
                result = await lease.sandbox.run(_SCRIPT, task.verifier.timeout_s)
                reward = self._reward(scratch, result)
                evidence = {
                    "queued_s": lease.queued_s,
                    "start_s": lease.start_s,
                    "run_s": result.duration_s,
                    "output": result.output[-self._config.evidence_chars :],
                }
            if isinstance(reward, Problem):
                return Attempt(problem=reward, evidence=evidence)
            return Attempt(reward=reward, evidence=evidence)
        except SandboxError as error:
            return _failed(error)
        finally:
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

    def _reward(self, scratch: Path, result: Result) -> float | Problem:
        if result.timed_out:
            return Problem.TIMED_OUT
        contents: list[bytes | None] = []
        for name in ("reward.json", "reward.txt"):
            try:
                cap = self._config.reward_cap_bytes
                content = read_inside(scratch, name, limit_bytes=cap + 1, follow=False)
            except FileNotFoundError:
                contents.append(None)
                continue
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO):
                    return Problem.NOT_A_FILE
                raise
            if len(content) > cap:
                return Problem.NOT_A_FILE
            contents.append(content)
        return parse(contents[0], contents[1])

    def _remembered(self, task: Task, pristine: Snapshot) -> list[Attempt]:
        found = self._healthy.get((task.digest, pristine.id))
        return [found[1]] if found is not None and found[0] > clock.now() else []

    def _remember(self, task: Task, pristine: Snapshot, control: Attempt) -> None:
        if control.reward is not None:
            until = clock.now() + self._config.control_ttl_s
            self._healthy[task.digest, pristine.id] = (until, control)


def _failed(error: SandboxError) -> Attempt:
    """What a failed sandbox says about the run. Who is to blame is for the control to show."""
    evidence = {"error": str(error), **error.evidence}
    if isinstance(error, SandboxLost):
        if error.by_agent:
            return Attempt(problem=Problem.CRASHED, evidence=evidence)
        return Attempt(problem=Problem.INTERRUPTED, cause=Cause.SANDBOX_LOST, evidence=evidence)
    if isinstance(error, SandboxStartError):
        return Attempt(problem=Problem.NOT_STARTED, cause=Cause.SANDBOX_START_FAILED, evidence=evidence)
    return Attempt(problem=Problem.INTERRUPTED, cause=error.cause, evidence=evidence)
