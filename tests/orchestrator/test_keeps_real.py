"""The whole of it in real sandboxes: a process that runs an attempt is killed, and the next one goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from factories import make_task
from muster import clock
from muster.journal import GroupRow, Journal, KeepRow
from muster.lab.fakes.engine import FakeRates, FakeReplica
from muster.lab.fakes.verifier import FakeVerifier
from muster.orchestrator.dispatch import Dispatcher
from muster.orchestrator.keeps import Keeps
from muster.rollout.agent import Agent
from muster.rollout.attempt import Rollout
from muster.rollout.renderer import Renderer
from muster.sandbox.config import SandboxConfig
from muster.sandbox.kept import KEPT
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.pool.pool import Pool
from muster.sandbox.port import Snapshot
from muster.types import Ints, Launch, Session, Task, Trajectory, Version
from rollout.playing import ROOMY
from rollout.tokens import STOP, CharTokenizer

TURNS = 5
DIES_IN = 3  # the turn in which the first process is killed
TESTS = Path(__file__).parent.parent


def _policy(tokens: Ints, session: Session, version: Version) -> Sequence[int]:
    turn = "".join(map(chr, tokens.tolist())).count("```bash\nsleep")
    text = "```bash\nsleep 0.1; N=$((N + 1)); echo $N >> file; cat file\n```" if turn < TURNS else "DONE"
    return [ord(c) for c in text + STOP]


async def run(place: Path, attempt: int, *, dies: bool) -> Trajectory:
    """One process: the attempt in a real sandbox, with a keep point after every turn."""
    roomy = {"max_turns": 20, "max_context_tokens": 9000, "max_tokens": 4000, "max_tokens_per_turn": 200}
    config = ROOMY.model_copy(update=roomy)
    backend = NamespaceBackend(SandboxConfig(state_dir=place / "state"), run="demo")
    with Journal.open(place / "journal.db", write=True) as journal:
        keeps = Keeps(journal, backend, 0.01)
        pool = Pool(backend, SandboxConfig(warm=0))

        def score(task: Task, state: Snapshot) -> float:
            return 1.0

        rates = FakeRates(prefill_tokens_per_s=1e6, decode_token_s=0.0001)
        agent = Agent(
            engine=FakeReplica("engine0", policy=_policy, rates=rates),
            renderer=Renderer(CharTokenizer()),
            config=config,
        )
        rollout = Rollout(agent=agent, pool=pool, verifier=FakeVerifier(score, latency_s=0.0), keeper=keeps)
        dispatcher = Dispatcher(journal, rollout, keeps)
        suffix = f"a{attempt}" if attempt else ""
        launch = Launch(id=f"g0.0{suffix}", group_id="g0", task=make_task(), sibling=0, attempt=attempt)
        running = asyncio.ensure_future(dispatcher.run(launch, "train", 1))
        while dies:
            await clock.sleep(0.01)
            if any(len(row.turns) >= DIES_IN for row in journal.rows(KeepRow)):
                os.kill(os.getpid(), signal.SIGKILL)
        trajectory = await running
        await pool.close()
    await backend.close()
    return trajectory


@pytest.mark.sandbox
def test_after_kill_9_an_attempt_goes_on_in_its_own_files_with_its_own_tokens(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "journal.db", meta={}) as journal:
        journal.record(GroupRow(id="g0", task_id="task", submission=0, version=0, admitted_at=0.0))
    program = (
        "import sys; from pathlib import Path; from muster import clock; from orchestrator.test_keeps_real import run; "
        "clock.run(run(Path(sys.argv[1]), 0, dies=True))"
    )
    child = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    with Journal.open(tmp_path / "journal.db") as journal:
        (row,) = journal.rows(KeepRow)
        kept = row.kept()
    after = clock.run(run(tmp_path, 1, dies=False))
    (segment,) = after.segments
    for name in ("tokens_T", "logprobs_T", "versions_T"):
        assert np.array_equal(getattr(segment, name)[: len(kept.segment)], getattr(kept.segment, name)), name
    assert after.turns[: len(kept.turns)] == kept.turns
    shown = [turn.observation.split() for turn in after.turns[:TURNS]]
    assert shown == [[str(n) for n in range(1, turn + 2)] for turn in range(TURNS)], "each turn saw all before it, once"
    assert after.outcome.evidence["continued"]["launch"] == "g0.0"
    with Journal.open(tmp_path / "journal.db") as journal:
        assert journal.count(KeepRow) == 0
    assert list((tmp_path / "state" / KEPT).iterdir()) == []
    assert [path.name for path in (tmp_path / "state" / "runs").iterdir()] == [".lock"]
