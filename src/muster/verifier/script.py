"""The script verifier: the task's `tests/test.sh` in a fork of the frozen final state.

    shared     final ─fork─► image's tools bound over, /tests read-only, /logs/verifier a fresh host directory
    separate   final ─fork─► collect commands ─► artifacts ─► fork of the verifier's own image, artifacts read-only
                   └─► bash /tests/test.sh ─► reward file ─host side, no links─► Attempt ─► control ─► Outcome

Law: nothing of the agent but its files takes part: no process, no shell state, no environment, no tool. The script's
exit code says nothing. Runs use the pool's verifier lane, so that grading never waits behind agents.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from muster.errors import ImageError, SandboxError, SandboxLost, SandboxStartError
from muster.sandbox.files import read_inside
from muster.sandbox.pool.pool import Lane, Lease, Pool
from muster.sandbox.port import Mount, Result, Service, Snapshot
from muster.types import Cause, Outcome, Task, Trajectory, VerifierSpec
from muster.verifier import artifacts
from muster.verifier.attribution import Attempt, tampered
from muster.verifier.config import VerifierConfig
from muster.verifier.control import Controlled
from muster.verifier.integrity import SYSTEM, touched
from muster.verifier.reward import Problem, criteria, parse

_SCRIPT = "/usr/bin/bash --noprofile --norc /tests/test.sh"
# packages that an agent installed for its user must not load into the tests' interpreter
_ENV = {"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}


class ScriptVerifier:
    """Implements `verifier.port.Verifier`.

    Example: `outcome = await ScriptVerifier(pool, VerifierConfig()).grade(task, final, pristine)`

    The evidence of an outcome holds `queued_s`, `start_s` and `run_s` of the run that counted.
    """

    def __init__(self, pool: Pool, config: VerifierConfig) -> None:
        self._pool = pool
        self._config = config
        self._controlled = Controlled(ttl_s=config.control_ttl_s, success_reward=config.success_reward)

    async def grade(
        self, task: Task, final: Snapshot, pristine: Snapshot, trajectory: Trajectory | None = None
    ) -> Outcome:
        paths = touched(final, pristine, task.verifier.owned)
        if paths:
            return tampered(paths)
        return await self._controlled.outcome(task, final, pristine, lambda state: self._attempt(task, state, pristine))

    async def _attempt(self, task: Task, state: Snapshot, pristine: Snapshot) -> Attempt:
        """One run over the files of `state`, in the environment of the untouched image."""
        scratch = Path(tempfile.mkdtemp(prefix="muster-verify-", dir=self._config.scratch_dir))
        try:
            if task.verifier.image is None:
                clean = for_verifier(state, pristine, task.verifier)
                return await self._run(task, clean, scratch, tools=tools_of(task.verifier, pristine))
            return await self._separate(task, state, pristine, scratch)
        except (SandboxError, ImageError) as error:
            return failed(error)
        finally:
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

    async def _separate(self, task: Task, state: Snapshot, pristine: Snapshot, scratch: Path) -> Attempt:
        """The verifier's own image sees the artifacts and nothing else."""
        spec = task.verifier
        assert spec.image is not None
        own = await self._pool.backend.prepare(spec.image)
        inside = replace(state, shell_state="", service=_optional(state))
        limits = replace(task.limits, egress=())
        handed = scratch / "handed"
        handed.mkdir()
        tools = tools_of(spec, pristine)
        mount = Mount(source=handed, target=artifacts.TARGET, writable=True)
        async with self._pool.lease(
            inside, limits, f"collect-{task.id}", mounts=(mount,), lane=Lane.VERIFIER, toolchain=tools
        ) as lease:
            await artifacts.collect(lease.sandbox, spec.collect, spec.artifacts)
        mounts = await asyncio.to_thread(artifacts.unpack, handed, scratch / "artifacts", spec.artifacts)
        return await self._run(task, for_verifier(own, own, spec), scratch, mounts=mounts)

    async def _run(
        self,
        task: Task,
        state: Snapshot,
        scratch: Path,
        *,
        tools: Snapshot | None = None,
        mounts: tuple[Mount, ...] = (),
    ) -> Attempt:
        channel = scratch / "channel"
        channel.mkdir()
        if task.verifier.user:
            channel.chmod(0o777)
        mounts = (
            *await asyncio.to_thread(_tests, task.verifier, scratch),
            Mount(source=channel, target="/logs/verifier", writable=True),
            *mounts,
        )
        limits = replace(task.verifier.limits or task.limits, egress=task.verifier.egress)
        async with self._pool.lease(
            state, limits, f"verify-{task.id}", mounts=mounts, lane=Lane.VERIFIER, toolchain=tools
        ) as lease:
            result = await lease.sandbox.run(_SCRIPT, task.verifier.timeout_s)
            await lease.sandbox.close()  # what the script left running may still write a reward
            reward, named = self._reward(channel, result)
            evidence = times(lease, result) | {"output": result.output[-self._config.evidence_chars :]}
            evidence |= {"criteria": named} if named else {}
        if isinstance(reward, Problem):
            return Attempt(problem=reward, evidence=evidence)
        return Attempt(reward=reward, evidence=evidence)

    def _reward(self, channel: Path, result: Result) -> tuple[float | Problem, dict[str, float]]:
        """The reward or a problem, and the criteria that the reward is made of."""
        if result.timed_out:
            return Problem.TIMED_OUT, {}
        contents: list[bytes | None] = []
        for name in ("reward.json", "reward.txt"):
            try:
                cap = self._config.reward_cap_bytes
                content = read_inside(channel, name, limit_bytes=cap + 1, follow=False)
            except FileNotFoundError:
                contents.append(None)
                continue
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO):
                    return Problem.NOT_A_FILE, {}
                raise
            if len(content) > cap:
                return Problem.NOT_A_FILE, {}
            contents.append(content)
        return parse(contents[0], contents[1]), criteria(contents[0])


def for_verifier(state: Snapshot, pristine: Snapshot, spec: VerifierSpec) -> Snapshot:
    """The files of `state`, and of all else what the image says; the image's service may be broken by now."""
    return replace(
        state,
        workdir=pristine.workdir,
        env={**pristine.env, **_ENV, **spec.env},
        shell_state="",
        user=spec.user or "",
        service=_optional(state),
    )


def tools_of(spec: VerifierSpec, pristine: Snapshot) -> Snapshot | None:
    """Snapshot of the tools to bind over: none where the task itself asks to change them."""
    tops = tuple(f"/{top}" for top in SYSTEM)
    owned = any(path == top or path.startswith(f"{top}/") for path in spec.owned for top in tops)
    return None if owned else pristine


def times(lease: Lease, result: Result) -> dict[str, object]:
    """The part of an outcome's evidence that says how long the run took."""
    return {"queued_s": lease.queued_s, "start_s": lease.start_s, "run_s": result.duration_s}


def failed(error: SandboxError | ImageError) -> Attempt:
    """Result of a run whose sandbox failed. Who is to blame is for the control to show."""
    evidence = {"error": str(error), **error.evidence}
    if isinstance(error, SandboxLost) and error.by_agent:
        return Attempt(problem=Problem.CRASHED, evidence=evidence)
    if isinstance(error, SandboxStartError):
        return Attempt(problem=Problem.NOT_STARTED, cause=Cause.SANDBOX_START_FAILED, evidence=evidence)
    return Attempt(problem=Problem.INTERRUPTED, cause=error.cause, evidence=evidence)


def _tests(spec: VerifierSpec, scratch: Path) -> tuple[Mount, ...]:
    """/tests: the directory itself, or with those of all steps a copy of both, where its own files win."""
    if spec.tests_in_image:
        return ()
    if spec.shared_tests is None:
        return (Mount(source=spec.tests.resolve(), target="/tests"),)
    merged = scratch / "tests"
    for source in (spec.shared_tests, spec.tests):
        if source.is_dir():
            shutil.copytree(source, merged, symlinks=True, dirs_exist_ok=True)
    return (Mount(source=merged, target="/tests"),)


def _optional(state: Snapshot) -> Service | None:
    return replace(state.service, required=False) if state.service else None
