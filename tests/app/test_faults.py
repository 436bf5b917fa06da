"""Faults injected into real sandboxes: who is blamed, and where the evidence is shown.

A scripted model plays a real task in a real sandbox with a real verifier; the attempt is journalled as in a run, then
reported and replayed as a user would do it.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from muster import clock
from muster.app import replaying
from muster.config import RunConfig
from muster.journal import Journal
from muster.lab.fakes.engine import FakeRates, FakeReplica
from muster.observe.render.text import render_text
from muster.observe.report import build_report
from muster.orchestrator.dispatch import Dispatcher
from muster.rollout.agent import Agent
from muster.rollout.attempt import Rollout
from muster.rollout.config import AgentConfig
from muster.rollout.renderer import Renderer
from muster.sandbox.config import DeadlineConfig, SandboxConfig
from muster.sandbox.deadlines import BoundedBackend
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.pool.pool import Pool
from muster.sandbox.port import MAIN, Counters, Mount, Result, Sandbox, SandboxBackend, Snapshot
from muster.tasks.config import SuiteConfig
from muster.tasks.suite import load_suites
from muster.types import Cause, Graded, ImageSpec, Ints, Launch, Limits, Session, Trajectory, Verdict, Version
from muster.verifier.config import VerifierConfig
from muster.verifier.function import FunctionVerifier
from muster.verifier.port import Verifier
from muster.verifier.script import ScriptVerifier
from muster_suites.write import generate
from rollout.tokens import STOP, CharTokenizer

pytestmark = pytest.mark.sandbox
SABOTAGE = "# here the world fails"
FAST = FakeRates(prefill_tokens_per_s=1e6, decode_token_s=1e-5)
PASS = "echo 1 > /logs/verifier/reward.txt\n"
Sabotage = Callable[[], None]


@dataclass
class Ground:
    """A run directory with one task, whose attempts are played for real."""

    directory: Path
    test: str = PASS
    sandbox: dict[str, object] = field(default_factory=dict)
    deadlines: DeadlineConfig = field(default_factory=DeadlineConfig)
    command_timeout_s: float = 5.0
    hang: bool = False  # a command with SABOTAGE in it never returns
    kill: bool = False  # … or its sandbox is killed from outside
    score: Callable[[Trajectory, Sandbox], float | None] | None = None

    def __post_init__(self) -> None:
        task = self.directory / "suite" / "task"
        for name, text in {
            "task.toml": '[metadata]\nfamily = "f"\n[environment]\nmemory_mb = 128\n[verifier]\ntimeout_sec = 5\n',
            "instruction.md": "Do it.\n",
            "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\n",
            "tests/test.sh": self.test,
        }.items():
            path = task / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.config = RunConfig(
            tasks=SuiteConfig(train=self.directory / "suite"),
            agent=AgentConfig(
                temperature=1.0,
                max_context_tokens=4000,
                max_tokens_per_turn=500,
                max_tokens=2000,
                command_timeout_s=self.command_timeout_s,
            ),
            engine={"max_model_len": 4096, "max_streams": 8},  # type: ignore[arg-type]
            sandbox=SandboxConfig(state_dir=self.directory / "state", kill_grace_s=0.1, warm=0, **self.sandbox),  # type: ignore[arg-type]
        )
        self.suites = load_suites(self.config.tasks, self.directory / "run/tasks", seed=0, generate=generate)

    @property
    def run(self) -> Path:
        return self.directory / "run"

    def play(self, *commands: str) -> Trajectory:
        """One attempt by a model that gives these commands and says DONE."""
        replies = [*(f"```bash\n{c}\n```" for c in commands), "DONE"]
        stops: list[int] = []

        def policy(tokens: Ints, session: Session, version: Version) -> Sequence[int]:
            stops.append(1)
            return [ord(c) for c in replies[len(stops) - 1] + STOP]

        async def main() -> Trajectory:
            real = NamespaceBackend(self.config.sandbox)
            saboteur = Saboteur(real, self._hang if self.hang else self._kill if self.kill else _nothing)
            pool = Pool(BoundedBackend(saboteur, self.deadlines), self.config.sandbox)
            verifier: Verifier = ScriptVerifier(pool, VerifierConfig())
            if self.score:
                verifier = FunctionVerifier(pool, VerifierConfig(), self.score)
            agent = Agent(
                engine=FakeReplica("engine0", policy=policy, rates=FAST),
                renderer=Renderer(CharTokenizer()),
                config=self.config.agent,
            )
            rollout = Rollout(agent=agent, pool=pool, verifier=verifier)
            launch = Launch(id="g0.0", group_id="g0", task=self.suites.train[0], sibling=0)
            with Journal.open(self.run / "journal.db", write=True) as journal:
                try:
                    return await Dispatcher(journal, rollout).run(launch, "train", 0)
                finally:
                    await pool.close()
                    await real.close()

        self.run.mkdir(exist_ok=True)
        meta = {
            "run": "faults",
            "created": 0.0,
            "config": self.config.model_dump(mode="json"),
            "tasks_digest": self.suites.digest,
        }
        Journal.create(self.run / "journal.db", meta=meta).close()
        return clock.run(main())

    async def _hang(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def _kill(self) -> None:
        for pid in _processes_below(self.config.sandbox.state_dir):
            os.kill(pid, signal.SIGKILL)

    def report(self) -> str:
        console = Console(file=io.StringIO(), width=250, color_system=None)
        with Journal.open(self.run / "journal.db") as journal:
            render_text(build_report(journal), console)
        return console.file.getvalue()  # type: ignore[attr-defined]

    def replay(self) -> tuple[str, bool]:
        console = Console(file=io.StringIO(), width=200, color_system=None)
        same = replaying.replay("g0.0", self.run, console=console)
        return console.file.getvalue(), same  # type: ignore[attr-defined]


async def _nothing() -> None: ...


def _processes_below(state_dir: Path) -> list[int]:
    """The bubblewrap processes whose layers lie there."""
    needle = os.fsencode(f"{state_dir}/runs/")
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


class Saboteur:
    """A backend in whose sandboxes something happens just before a command with SABOTAGE in it."""

    def __init__(self, inner: SandboxBackend, sabotage: Callable[[], object]) -> None:
        self._inner = inner
        self._sabotage = sabotage

    async def prepare(self, image: ImageSpec) -> Snapshot:
        return await self._inner.prepare(image)

    async def fork(
        self,
        snapshot: Snapshot,
        *,
        limits: Limits,
        label: str,
        mounts: tuple[Mount, ...] = (),
        toolchain: Snapshot | None = None,
    ) -> Sandbox:
        inner = await self._inner.fork(snapshot, limits=limits, label=label, mounts=mounts, toolchain=toolchain)
        return SaboteurSandbox(inner, self._sabotage)

    async def restore(self, id: str) -> Snapshot | None:
        return await self._inner.restore(id)

    async def discard(self, snapshot: Snapshot) -> None:
        await self._inner.discard(snapshot)

    async def close(self) -> None:
        await self._inner.close()


class SaboteurSandbox:
    def __init__(self, inner: Sandbox, sabotage: Callable[[], object]) -> None:
        self.id = inner.id
        self._inner = inner
        self._sabotage = sabotage
        self.read, self.write = inner.read, inner.write
        self.snapshot, self.keep, self.alive = inner.snapshot, inner.keep, inner.alive

    async def run(
        self, command: str, timeout_s: float, *, silence_s: float | None = None, session: str = MAIN
    ) -> Result:
        if SABOTAGE in command:
            await self._sabotage()  # type: ignore[misc]
        return await self._inner.run(command, timeout_s, silence_s=silence_s, session=session)

    async def close(self) -> Counters:
        return await self._inner.close()


def outcome(trajectory: Trajectory) -> tuple[Verdict, Cause]:
    return trajectory.outcome.verdict, trajectory.outcome.cause


# --- sandboxes -----------------------------------------------------------------------------------------


def test_a_sandbox_killed_from_outside_is_infrastructure_and_the_fault_is_gone_in_a_replay(tmp_path: Path) -> None:
    ground = Ground(tmp_path, kill=True)
    assert outcome(ground.play("echo one", f"echo two {SABOTAGE}")) == (Verdict.INFRA, Cause.SANDBOX_LOST)
    assert "killed from outside" in ground.report()
    shown, same = ground.replay()
    assert "killed from outside" in shown
    assert "the fault does not repeat" in shown
    assert same


def test_a_backend_call_that_hangs_is_infrastructure_with_the_call_as_evidence(tmp_path: Path) -> None:
    ground = Ground(tmp_path, hang=True, deadlines=DeadlineConfig(run_s=0.2), command_timeout_s=0.3)
    trajectory = ground.play(f"echo one {SABOTAGE}")
    assert outcome(trajectory) == (Verdict.INFRA, Cause.SANDBOX_LOST)
    assert trajectory.outcome.evidence["hung"] == "run"
    assert "run did not answer in" in ground.report()


def test_a_host_without_free_disk_is_infrastructure_and_never_the_model(tmp_path: Path) -> None:
    ground = Ground(tmp_path, sandbox={"free_disk_bytes": 2**60})
    trajectory = ground.play("sleep 0.3; echo data > file; sleep 2")
    assert outcome(trajectory) == (Verdict.INFRA, Cause.SANDBOX_LOST)
    assert "disk" in trajectory.outcome.evidence["error"]
    shown, _ = ground.replay()
    assert "the fault repeats" in shown


def test_a_model_that_fills_its_own_disk_is_told_so_and_graded(tmp_path: Path) -> None:
    ground = Ground(tmp_path, test="[ -f /app/after ] && " + PASS, sandbox={"disk_bytes": 16 * 2**20})
    trajectory = ground.play("head -c 64M /dev/zero > big", "rm -f big; touch after")
    assert outcome(trajectory) == (Verdict.SUCCESS, Cause.VERIFIER_PASSED)


# --- verifiers -----------------------------------------------------------------------------------------


def test_a_verifier_that_always_crashes_is_infrastructure_and_the_control_shows_it(tmp_path: Path) -> None:
    ground = Ground(tmp_path, test="echo the library is missing; exit 1\n")
    assert outcome(ground.play("echo one")) == (Verdict.INFRA, Cause.VERIFIER_FAULT)
    assert "final: missing, missing; control: missing" in ground.report()
    shown, same = ground.replay()
    assert "run on the untouched control: missing" in shown
    assert "  | the library is missing" in shown
    assert "the fault repeats" in shown
    assert same


def test_a_verifier_that_crashes_on_this_state_alone_was_broken_by_the_agent(tmp_path: Path) -> None:
    ground = Ground(tmp_path, test="[ -f /app/bad ] && exit 1\n" + PASS)
    trajectory = ground.play("touch bad")
    assert outcome(trajectory) == (Verdict.FAILURE, Cause.VERIFIER_BROKEN_BY_AGENT)
    assert isinstance(trajectory.outcome, Graded)
    assert trajectory.outcome.reward == 0.0
    assert "final: missing, missing; control: reward 1" in ground.report()
    shown, same = ground.replay()
    assert "run on the untouched control: reward 1" in shown
    assert "same outcome" in shown
    assert same


def test_a_verifier_that_crashes_at_random_is_unknown_and_never_trained(tmp_path: Path) -> None:
    calls: list[str] = []

    async def score(trajectory: Trajectory, sandbox: Sandbox) -> float:
        calls.append(sandbox.id)
        if len(calls) == 1:
            raise RuntimeError("out of luck")
        return 1.0

    ground = Ground(tmp_path, score=score)  # type: ignore[arg-type]
    trajectory = ground.play("echo one")
    assert outcome(trajectory) == (Verdict.UNKNOWN, Cause.EVIDENCE_CONTRADICTORY)
    assert len(calls) == 3, "twice on the final state, once on the control"
    assert not isinstance(trajectory.outcome, Graded)
    assert "final: crashed, reward 1; control: reward 1" in ground.report()


@pytest.mark.parametrize("lose", ["rm -f /logs/verifier/reward.txt", ": > /logs/verifier/reward.txt"])
def test_a_reward_file_that_is_lost_on_both_states_is_infrastructure(tmp_path: Path, lose: str) -> None:
    ground = Ground(tmp_path, test=f"{PASS}{lose}\n")
    assert outcome(ground.play("echo one")) == (Verdict.INFRA, Cause.VERIFIER_FAULT)


def test_a_verifier_that_hangs_on_this_state_alone_was_broken_by_the_agent(tmp_path: Path) -> None:
    ground = Ground(tmp_path, test="[ -f /app/hang ] && sleep 100\n" + PASS)
    toml = tmp_path / "suite/task/task.toml"
    toml.write_text(toml.read_text().replace("timeout_sec = 5", "timeout_sec = 0.5"))
    ground.suites = load_suites(ground.config.tasks, ground.run / "tasks", seed=0, generate=generate)
    assert outcome(ground.play("touch hang")) == (Verdict.FAILURE, Cause.VERIFIER_BROKEN_BY_AGENT)
