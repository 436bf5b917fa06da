"""Tasks of several steps on real sandboxes: from a Harbor directory to an outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from muster import clock
from muster.lab.fakes.engine import FakeReplica
from muster.rollout.agent import Agent
from muster.rollout.attempt import Rollout
from muster.rollout.conversation import conversation
from muster.rollout.preparation import prepare
from muster.rollout.renderer import Renderer
from muster.rollout.spans import SpanRecorder
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.pool.pool import Pool
from muster.sandbox.port import Sandbox
from muster.tasks.harbor import load_task
from muster.types import (
    Cause,
    Graded,
    ImageSpec,
    Ints,
    Launch,
    Limits,
    Session,
    TaskStep,
    Trajectory,
    Verdict,
    VerifierSpec,
    Version,
)
from muster.verifier.config import VerifierConfig
from muster.verifier.script import ScriptVerifier
from rollout.playing import ROOMY
from rollout.tokens import STOP, CharTokenizer
from tasks.task_directory import write_task

pytestmark = pytest.mark.sandbox

TOML = """
[[steps]]
name = "plant"
min_reward = 1.0
[[steps]]
name = "harvest"
[steps.healthcheck]
command = "test -x /app/bin/tool"
interval_sec = 0.1
"""
CHECK = '. /tests/lib.sh\nreward "$(cat /app/%s 2>/dev/null)" = %s\n'
FILES = {
    "tests/lib.sh": 'reward() { if [ "$@" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt; }\n',
    "steps/plant/instruction.md": "Write seed to field.\n",
    "steps/plant/tests/test.sh": CHECK % ("field", "seed"),
    "steps/harvest/instruction.md": "Write what the tool says to barn.\n",
    "steps/harvest/tests/test.sh": CHECK % ("barn", "corn"),
    "steps/harvest/workdir/setup.sh": "grep -q seed field && chmod +x bin/tool\n",
    "steps/harvest/workdir/bin/tool": "#!/bin/sh\necho corn\n",
}


def play(root: Path, *replies: str) -> Trajectory:
    task = load_task(write_task(root, toml=TOML, **FILES | {"environment/Dockerfile": "FROM x\nWORKDIR /app\n"}))
    renderer = Renderer(CharTokenizer())
    before = renderer.prompt(conversation("starter", task.instruction)).count(ord(STOP))

    def policy(tokens: Ints, session: Session, version: Version) -> Sequence[int]:
        turn = tokens.tolist().count(ord(STOP)) - before
        return [ord(c) for c in replies[turn // 2] + STOP]

    async def run(backend: NamespaceBackend, pool: Pool) -> Trajectory:
        agent = Agent(engine=FakeReplica("engine0", policy=policy), renderer=renderer, config=ROOMY)
        rollout = Rollout(agent=agent, pool=pool, verifier=ScriptVerifier(pool, VerifierConfig()))
        launch = Launch(id="g0.0", group_id="g0", task=task, sibling=0)
        return await rollout.run(launch, SpanRecorder(launch.id), seed=1)

    return on_sandboxes(root, run)


def on_sandboxes(root: Path, body: Callable[[NamespaceBackend, Pool], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        config = SandboxConfig(state_dir=root / "state", warm=0)
        backend = NamespaceBackend(config)
        pool = Pool(backend, config)
        try:
            found = await body(backend, pool)
            await pool.close()
            assert backend.live == 0
            return found
        finally:
            await backend.close()

    return clock.run(main())


def test_two_steps_are_played_and_verified_one_after_the_other(tmp_path: Path) -> None:
    plant, harvest = "```bash\necho seed > field\n```", "```bash\nbin/tool > barn\n```"
    trajectory = play(tmp_path, plant, "DONE", harvest, "DONE")
    assert trajectory.outcome.verdict is Verdict.SUCCESS, trajectory.outcome
    assert [line["reward"] for line in trajectory.outcome.evidence["steps"]] == [1.0, 1.0]
    assert len(set(trajectory.snapshots)) == 3


def test_a_failed_first_step_ends_the_task(tmp_path: Path) -> None:
    outcome = play(tmp_path, "```bash\necho weed > field\n```", "DONE").outcome
    assert isinstance(outcome, Graded)
    assert (outcome.verdict, outcome.reward, outcome.cause) == (Verdict.FAILURE, 0.0, Cause.VERIFIER_FAILED)


def prepared(root: Path, setup: Path, before: str = "true") -> tuple[dict[str, Any] | None, str]:
    """Result of setting up a step after the agent's `before`, and what /app then holds."""
    step = TaskStep(name="s", instruction="do", verifier=VerifierSpec(tests=setup), setup=setup)

    async def run(backend: NamespaceBackend, pool: Pool) -> tuple[dict[str, Any] | None, str]:
        pristine = await backend.prepare(ImageSpec(workdir="/app"))
        async with pool.lease(pristine, Limits(), "agent") as lease:
            sandbox: Sandbox = lease.sandbox
            await sandbox.run(before, 10)
            failure = await prepare(sandbox, step, "/app", 10)
            seen = await sandbox.run("pwd; find . -type f -printf '%M %P\\n' | sort -k2", 10)
            return failure, seen.output

    return on_sandboxes(root, run)


@pytest.fixture
def setup(tmp_path: Path) -> Path:
    for name, mode in (("data/a b.txt", 0o644), ("bin/run", 0o755)):
        path = tmp_path / "setup" / name
        path.parent.mkdir(parents=True)
        path.write_text("x\n")
        path.chmod(mode)
    return tmp_path / "setup"


def test_files_keep_their_names_and_may_be_run_and_the_agents_shell_is_as_it_was(tmp_path: Path, setup: Path) -> None:
    failure, seen = prepared(tmp_path, setup, before="mkdir -p /tmp/elsewhere && cd /tmp/elsewhere && cd /app/")
    assert failure is None
    assert seen.split("\n")[:3] == ["/app", "-rwxr-xr-x bin/run", "-rw-r--r-- data/a b.txt"]


@pytest.mark.parametrize(
    "obstacle",
    ["mkdir -p 'data/a b.txt'", "mkdir data; mkfifo 'data/a b.txt'", "touch data", "rm -rf /app; touch /app"],
)
def test_what_the_agent_left_in_the_way_is_told_and_is_no_error(tmp_path: Path, setup: Path, obstacle: str) -> None:
    failure, _ = prepared(tmp_path, setup, before=f"cd / ; cd /app; {obstacle}")
    assert failure is not None
    assert failure["what"] == "files"


def test_a_link_in_the_way_leads_nowhere_on_the_host(tmp_path: Path, setup: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    prepared(tmp_path, setup, before=f"ln -s {outside} data")
    assert list(outside.iterdir()) == []
