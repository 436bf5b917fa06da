"""Python functions as verifiers, over the fake backend on the virtual clock."""

from __future__ import annotations

import pytest

from factories import make_task
from muster import clock
from muster.errors import ConfigError
from muster.lab.fakes.sandbox import FakeBackend
from muster.sandbox.config import SandboxConfig
from muster.sandbox.pool.pool import Pool
from muster.sandbox.port import Sandbox
from muster.types import Cause, Graded, ImageSpec, Limits, Outcome, Trajectory, Verdict
from muster.verifier.config import VerifierConfig
from muster.verifier.function import FunctionVerifier, Score, load_score, source_digest


def grade(score: Score, *, agent: str = "echo 42 > /app/answer") -> Outcome:
    async def main() -> Outcome:
        backend = FakeBackend()
        pool = Pool(backend, SandboxConfig(warm=0))
        pristine = await backend.prepare(ImageSpec())
        sandbox = await backend.fork(pristine, limits=Limits(), label="agent")
        await sandbox.run(agent, timeout_s=5)
        final = await sandbox.snapshot()
        await sandbox.close()
        verifier = FunctionVerifier(pool, VerifierConfig(score_timeout_s=10), score)
        outcome = await verifier.grade(make_task(), final, pristine)
        await pool.close()
        assert backend.live == 0
        return outcome

    return clock.run_virtual(main())


async def by_answer(trajectory: Trajectory, sandbox: Sandbox) -> float | None:
    return float((await sandbox.run("cat /app/answer", timeout_s=5)).output == "42\n")


def test_a_function_looks_into_a_fork_of_the_final_state() -> None:
    outcome = grade(by_answer)
    assert (outcome.verdict, outcome.cause) == (Verdict.SUCCESS, Cause.VERIFIER_PASSED)
    assert {"queued_s", "start_s", "run_s"} <= outcome.evidence.keys()
    assert grade(by_answer, agent="true").cause is Cause.VERIFIER_FAILED


def test_none_means_that_it_cannot_tell_and_is_never_a_zero() -> None:
    async def score(trajectory: Trajectory, sandbox: Sandbox) -> None:
        return None

    outcome = grade(score)
    assert (outcome.verdict, outcome.cause) == (Verdict.UNKNOWN, Cause.UNSCORABLE)


async def raises_on_answer(trajectory: Trajectory, sandbox: Sandbox) -> float:
    found = await sandbox.run("cat /app/answer", timeout_s=5)
    return 1.0 if found.exit_code else float("not a number")


async def raises_always(trajectory: Trajectory, sandbox: Sandbox) -> float:
    raise KeyError("reward")


async def hangs(trajectory: Trajectory, sandbox: Sandbox) -> float:
    await clock.sleep(1e6)
    return 1.0


async def not_a_number(trajectory: Trajectory, sandbox: Sandbox) -> float:
    return float("nan")


def test_a_function_that_fails_on_this_state_alone_was_broken_by_the_agent() -> None:
    outcome = grade(raises_on_answer)
    assert isinstance(outcome, Graded)
    assert (outcome.cause, outcome.reward) == (Cause.VERIFIER_BROKEN_BY_AGENT, 0.0)
    assert "ValueError" in outcome.evidence["final"][0]["error"]


@pytest.mark.parametrize("score", [raises_always, hangs, not_a_number])
def test_a_function_that_fails_on_the_control_as_well_is_infrastructure(score: Score) -> None:
    outcome = grade(score)
    assert (outcome.verdict, outcome.cause) == (Verdict.INFRA, Cause.VERIFIER_FAULT)


@pytest.mark.parametrize(
    ("failures", "verdict", "cause"),
    [(2, Verdict.SUCCESS, Cause.VERIFIER_PASSED), (99, Verdict.INFRA, Cause.TRANSPORT)],
)
def test_a_judge_that_cannot_be_reached_is_asked_again_and_never_the_agents_doing(
    failures: int, verdict: Verdict, cause: Cause
) -> None:
    calls: list[str] = []

    async def score(trajectory: Trajectory, sandbox: Sandbox) -> float:
        calls.append(sandbox.id)
        if len(calls) <= failures:
            raise ConnectionResetError("judge went away")
        return 1.0

    outcome = grade(score)
    assert (outcome.verdict, outcome.cause) == (verdict, cause)
    assert len(calls) == 3


def test_a_function_is_found_by_its_name_and_a_wrong_name_says_what_to_write() -> None:
    assert load_score(f"{__name__}:by_answer").__name__ == "by_answer"  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="write module:function"):
        load_score("by_answer")
    with pytest.raises(ConfigError, match="is it on PYTHONPATH"):
        load_score("no_such_module_at_all:score")
    with pytest.raises(ConfigError, match="has no function 'missing'"):
        load_score("json:missing")


def test_a_score_in_an_edited_file_is_another_one(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = tmp_path / "my_scores_of_a_test.py"
    source.write_text("def score(trajectory, sandbox): return 1.0\n")
    before = source_digest("my_scores_of_a_test:score")
    assert source_digest("my_scores_of_a_test:score") == before
    source.write_text("def score(trajectory, sandbox): return 0.0\n")
    assert source_digest("my_scores_of_a_test:score") != before
