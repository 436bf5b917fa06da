"""The script verifier on real sandboxes: what scripts do, and what agents try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from factories import make_task
from muster import clock
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.pool.pool import Pool
from muster.types import Cause, Graded, ImageSpec, Limits, Outcome, Verdict, VerifierSpec
from muster.verifier.config import VerifierConfig
from muster.verifier.script import ScriptVerifier

pytestmark = pytest.mark.sandbox
PASS = "echo 1 > /logs/verifier/reward.txt\n"
Grade = Callable[..., Outcome]


@pytest.fixture
def grade(tmp_path: Path) -> Grade:
    """`grade(script, agent=commands)` is the outcome of a task with that `test.sh`."""

    def run(script: str, *, agent: str = "true", timeout_s: float = 20, env: dict[str, str] | None = None) -> Outcome:
        tests, scratch = tmp_path / "tests", tmp_path / "scratch"
        tests.mkdir()
        scratch.mkdir()
        (tests / "test.sh").write_text(script)
        spec = VerifierSpec(tests=tests, timeout_s=timeout_s, env=env or {})
        task = replace(make_task(), verifier=spec)

        async def main() -> Outcome:
            config = SandboxConfig(state_dir=tmp_path / "state", kill_grace_s=0.1)
            backend = NamespaceBackend(config)
            pool = Pool(backend, config)
            try:
                pristine = await backend.prepare(ImageSpec(workdir="/app"))
                sandbox = await backend.fork(pristine, limits=Limits(), label="agent")
                await sandbox.run(agent, timeout_s=10)
                final = await sandbox.snapshot()
                await sandbox.close()
                verifier = ScriptVerifier(pool, VerifierConfig(scratch_dir=scratch))
                outcome = await verifier.grade(task, final, pristine)
                await pool.close()
                assert backend.live == 0
                assert list(scratch.iterdir()) == []
                return outcome
            finally:
                await backend.close()

        return clock.run(main())

    return run


def cause(outcome: Outcome) -> Cause:
    return outcome.cause


def test_a_script_runs_in_the_working_directory_with_its_environment(grade: Grade) -> None:
    script = '[ "$PWD" = /app ] && [ "$WANTED" = yes ] && [ "$HOME" = /root ] && ' + PASS
    assert cause(grade(script, env={"WANTED": "yes"})) is Cause.VERIFIER_PASSED


def test_the_exit_code_is_ignored(grade: Grade) -> None:
    assert cause(grade(PASS + "exit 7")) is Cause.VERIFIER_PASSED


def test_the_json_file_wins_over_the_text_file(grade: Grade) -> None:
    outcome = grade(PASS + "echo '{\"reward\": 0.5}' > /logs/verifier/reward.json")
    assert isinstance(outcome, Graded)
    assert (outcome.reward, outcome.verdict) == (0.5, Verdict.FAILURE)
    assert outcome.evidence["criteria"] == {"reward": 0.5}


def test_a_script_that_always_crashes_is_infrastructure(grade: Grade) -> None:
    assert cause(grade("exit 1")) is Cause.VERIFIER_FAULT


def test_a_script_that_hangs_on_this_state_alone_was_broken_by_the_agent(grade: Grade) -> None:
    outcome = grade("[ -f /app/hang ] && sleep 100; " + PASS, agent="touch hang", timeout_s=0.3)
    assert cause(outcome) is Cause.VERIFIER_BROKEN_BY_AGENT


@pytest.mark.parametrize("content", ["", "nan", "yes"])
def test_a_reward_that_is_none_on_this_state_alone_was_broken_by_the_agent(grade: Grade, content: str) -> None:
    script = f"[ -f /app/odd ] && echo '{content}' > /logs/verifier/reward.txt || " + PASS
    assert cause(grade(script, agent="touch odd")) is Cause.VERIFIER_BROKEN_BY_AGENT


def test_a_link_in_place_of_the_reward_file_is_refused(grade: Grade) -> None:
    # the tests run a program of the agent's, which forges a reward by a link to a file of its own
    script = "echo 0 > /logs/verifier/reward.txt; [ -x /app/program ] && /app/program; true"
    agent = (
        "echo 1 > /app/one; printf '#!/bin/bash\\nln -sf /app/one /logs/verifier/reward.txt\\n' > program;"
        "chmod +x program"
    )
    assert cause(grade(script, agent=agent)) is Cause.VERIFIER_BROKEN_BY_AGENT


def test_a_forged_reward_file_in_the_final_state_is_tampering(grade: Grade) -> None:
    outcome = grade("true", agent="echo 1 > /logs/verifier/reward.txt")
    assert cause(outcome) is Cause.TAMPERED
    assert outcome.evidence["tampered"] == ["/logs/verifier"]


@pytest.mark.parametrize(
    "agent",
    [
        "rm /bin; mkdir /bin; cp /usr/bin/true /usr/bin/bash /bin/",
        "rm /lib64; cp -r /usr/lib64 /lib64",
        "echo /app/evil.so > /etc/ld.so.preload",
        "mv /logs /old; ln -s /app /logs",
    ],
)
def test_touching_the_toolchain_or_the_reward_channel_is_tampering(grade: Grade, agent: str) -> None:
    assert cause(grade(PASS, agent=agent)) is Cause.TAMPERED


def test_tests_of_the_agent_do_not_shadow_the_real_ones(grade: Grade) -> None:
    agent = f"mkdir /tests; printf '{PASS.strip()}' > /tests/test.sh"
    assert cause(grade("echo 0 > /logs/verifier/reward.txt", agent=agent)) is Cause.VERIFIER_FAILED


def test_a_link_in_place_of_tests_is_the_agents_failure(grade: Grade) -> None:
    outcome = grade("echo 0 > /logs/verifier/reward.txt", agent="mkdir own; ln -s /app/own /tests")
    assert cause(outcome) is Cause.VERIFIER_BROKEN_BY_AGENT


def test_the_shell_state_of_the_agent_takes_no_part(grade: Grade) -> None:
    agent = (
        "export PATH=/app:$PATH BASH_ENV=/app/env ENV=/app/env LD_PRELOAD=/app/x.so; cat() { echo 1; };"
        "export -f cat; printf 'echo 1 > /logs/verifier/reward.txt; exit' > /app/env;"
        "printf '#!/bin/bash\\necho 1' > /app/expr; chmod +x /app/expr"
    )
    script = "cat /dev/null > /logs/verifier/reward.txt; expr 0 + 0 >> /logs/verifier/reward.txt"
    assert cause(grade(script, agent=agent)) is Cause.VERIFIER_FAILED


def test_processes_of_the_agent_are_dead_when_it_is_graded(grade: Grade) -> None:
    agent = "(while :; do touch /app/alive; sleep 0.01; done) & sleep 0.1"
    script = "rm /app/alive; sleep 0.1; [ -f /app/alive ] && exit 0; " + PASS
    assert cause(grade(script, agent=agent)) is Cause.VERIFIER_PASSED


def test_the_tests_are_read_only(grade: Grade) -> None:
    assert cause(grade("echo x > /tests/more || " + PASS)) is Cause.VERIFIER_PASSED
