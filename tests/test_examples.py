"""The example's loop runs, over fakes; its `main` puts the real parts in their places."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from factories import make_task
from muster import clock
from muster.lab.fakes.engine import FakeReplica
from muster.lab.fakes.sandbox import FakeBackend
from muster.lab.fakes.trainer import FakeTrainer
from muster.lab.fakes.verifier import FakeVerifier
from muster.publish.config import PublisherConfig
from muster.publish.publisher import Publisher
from muster.rollout.agent import Agent
from muster.rollout.attempt import Rollout
from muster.rollout.config import AgentConfig
from muster.rollout.renderer import Renderer
from muster.sandbox.config import SandboxConfig
from muster.sandbox.pool.pool import Pool
from muster.types import Ints, Session, Version
from rollout.tokens import STOP, CharTokenizer

EXAMPLE = Path(__file__).parent.parent / "examples/minimal.py"


@pytest.mark.model
def test_the_algorithm_on_one_page_trains_and_publishes(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("minimal", EXAMPLE)
    assert spec and spec.loader
    minimal = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(minimal)
    rng = np.random.default_rng(0)

    def half_do_the_task(tokens: Ints, session: Session, version: Version) -> Sequence[int]:
        command = "echo yes > done" if rng.random() < 0.5 else "echo no > other"
        return [ord(c) for c in f"```bash\n{command}\n```{STOP}"]

    async def run() -> Version:
        backend = FakeBackend()
        pool = Pool(backend, SandboxConfig())
        engine = FakeReplica("engine0", policy=half_do_the_task)
        config = AgentConfig(temperature=minimal.TEMPERATURE, max_context_tokens=4000)  # a token is a character here
        agent = Agent(engine=engine, renderer=Renderer(CharTokenizer()), config=config)
        verifier = FakeVerifier(lambda task, state: 1.0 if backend.file(state, "/app/done") else 0.0)
        rollout = Rollout(agent=agent, pool=pool, verifier=verifier)
        publisher = Publisher([engine], PublisherConfig(canary_tolerance=100.0))
        tasks = [make_task(f"task{i}", max_turns=2) for i in range(3)]
        await minimal.train(2, tasks, agent, rollout, FakeTrainer(), publisher)
        await pool.close()
        return engine.version

    assert clock.run_virtual(run()).number == 2
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["step 1", "step 2"]
