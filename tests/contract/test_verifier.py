"""Contract of every verifier, the fake included. A task is solved when /app/done exists."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from factories import make_task
from muster import clock
from muster.lab.fakes.sandbox import FakeBackend
from muster.lab.fakes.verifier import FakeVerifier
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.pool.pool import Pool
from muster.sandbox.port import SandboxBackend, Snapshot
from muster.types import Cause, Graded, ImageSpec, Limits, Task, Verdict, VerifierSpec
from muster.verifier.config import VerifierConfig
from muster.verifier.port import Verifier
from muster.verifier.reward import Problem
from muster.verifier.script import ScriptVerifier

TEST = """
if [ -f /app/broken ]; then exit 1; fi
if [ -f /app/done ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""
Body = Callable[[SandboxBackend, Verifier, Task], Awaitable[None]]
Check = Callable[[Body], None]


def task_in(directory: Path) -> Task:
    tests = directory / "tests"
    tests.mkdir()
    (tests / "test.sh").write_text(TEST)
    return replace(make_task(), verifier=VerifierSpec(tests=tests, timeout_s=20))


def on_fake(body: Body, task: Task) -> None:
    async def main() -> None:
        backend = FakeBackend()

        def score(_: Task, state: Snapshot) -> float | Problem:
            if backend.file(state, "/app/broken") is not None:
                return Problem.MISSING
            return 1.0 if backend.file(state, "/app/done") is not None else 0.0

        await body(backend, FakeVerifier(score), task)
        await backend.close()

    clock.run_virtual(main())


def on_script(body: Body, task: Task, state_dir: Path) -> None:
    async def main() -> None:
        config = SandboxConfig(state_dir=state_dir)
        backend = NamespaceBackend(config)
        pool = Pool(backend, config)
        try:
            await body(backend, ScriptVerifier(pool, VerifierConfig()), task)
            await pool.close()
        finally:
            await backend.close()

    clock.run(main())


@pytest.fixture(params=["fake", pytest.param("script", marks=pytest.mark.sandbox)])
def check(request: pytest.FixtureRequest, tmp_path: Path) -> Check:
    task = task_in(tmp_path)
    if request.param == "fake":
        return lambda body: on_fake(body, task)
    return lambda body: on_script(body, task, tmp_path / "state")


async def states(backend: SandboxBackend, command: str) -> tuple[Snapshot, Snapshot]:
    """(final, pristine), where the agent ran `command`."""
    pristine = await backend.prepare(ImageSpec(workdir="/app"))
    sandbox = await backend.fork(pristine, limits=Limits(), label="agent")
    await sandbox.run(command, timeout_s=5)
    return await sandbox.snapshot(), pristine


@pytest.mark.parametrize(
    ("command", "verdict", "cause", "reward"),
    [
        ("touch /app/done", Verdict.SUCCESS, Cause.VERIFIER_PASSED, 1.0),
        ("true", Verdict.FAILURE, Cause.VERIFIER_FAILED, 0.0),
        ("touch /app/done; rm /app/done", Verdict.FAILURE, Cause.VERIFIER_FAILED, 0.0),
        ("touch /app/done; touch /app/broken", Verdict.FAILURE, Cause.VERIFIER_BROKEN_BY_AGENT, 0.0),
    ],
)
def test_the_final_state_is_graded(check: Check, command: str, verdict: Verdict, cause: Cause, reward: float) -> None:
    async def body(backend: SandboxBackend, verifier: Verifier, task: Task) -> None:
        outcome = await verifier.grade(task, *await states(backend, command))
        assert isinstance(outcome, Graded)
        assert (outcome.verdict, outcome.cause, outcome.reward) == (verdict, cause, reward)

    check(body)


def test_grading_changes_nothing_and_may_be_repeated(check: Check) -> None:
    async def body(backend: SandboxBackend, verifier: Verifier, task: Task) -> None:
        final, pristine = await states(backend, "touch /app/done")
        first = await verifier.grade(task, final, pristine)
        second = await verifier.grade(task, final, pristine)
        assert (first.verdict, first.cause) == (second.verdict, second.cause)

    check(body)


def test_the_evidence_says_how_long_the_run_that_counted_took(check: Check) -> None:
    async def body(backend: SandboxBackend, verifier: Verifier, task: Task) -> None:
        outcome = await verifier.grade(task, *await states(backend, "true"))
        assert {"queued_s", "start_s", "run_s"} <= outcome.evidence.keys()

    check(body)


def test_a_verifier_that_fails_without_the_agent_is_infrastructure(check: Check) -> None:
    async def body(backend: SandboxBackend, verifier: Verifier, task: Task) -> None:
        broken, _ = await states(backend, "touch /app/broken")
        outcome = await verifier.grade(task, broken, broken)
        assert (outcome.verdict, outcome.cause) == (Verdict.INFRA, Cause.VERIFIER_FAULT)

    check(body)
