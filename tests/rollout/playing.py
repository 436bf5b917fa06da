"""Plays one attempt over fakes on the virtual clock, with a model that gives fixed replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from muster import clock
from muster.lab.fakes.engine import FakeRates, FakeReplica
from muster.lab.fakes.sandbox import FakeBackend, FakeFaults
from muster.lab.fakes.verifier import FakeVerifier
from muster.rollout.agent import Agent
from muster.rollout.attempt import Rollout
from muster.rollout.config import AgentConfig
from muster.rollout.conversation import conversation
from muster.rollout.renderer import Renderer
from muster.rollout.spans import SpanRecorder
from muster.sandbox.config import SandboxConfig
from muster.sandbox.pool.pool import Pool
from muster.sandbox.port import Snapshot
from muster.types import Ints, Launch, Outcome, Session, Task, Trajectory, Version
from muster.verifier.reward import Problem
from rollout.tokens import STOP, CharTokenizer

ROOMY = AgentConfig(temperature=1.0, max_context_tokens=4000)  # a token is a character here
Score = Callable[[FakeBackend, Task, Snapshot], float | Problem]


def done_exists(backend: FakeBackend, task: Task, state: Snapshot) -> float | Problem:
    return 1.0 if backend.file(state, "/app/done") else 0.0


def play(
    task: Task,
    *replies: str,
    config: AgentConfig = ROOMY,
    faults: FakeFaults | None = None,
    break_engine: bool = False,
    rates: FakeRates | None = None,
    score: Score = done_exists,
    seen: list[Trajectory] | None = None,
    replica: type[FakeReplica] = FakeReplica,
) -> Trajectory:
    """Trajectory of a model that gives `replies` in order, the last one again and again.

    `seen` collects what the verifier was told of the trajectory.
    """
    renderer = Renderer(CharTokenizer())
    prompt_stops = renderer.prompt(conversation("starter", task.instruction)).count(ord(STOP))

    def policy(tokens: Ints, session: Session, version: Version) -> Sequence[int]:
        turn = sum(1 for t in tokens.tolist() if t == ord(STOP)) - prompt_stops
        return [ord(c) for c in replies[min(turn // 2, len(replies) - 1)] + STOP]

    async def main() -> Trajectory:
        backend = FakeBackend(faults=faults, rng=np.random.default_rng(0))
        engine = replica("engine0", policy=policy, rates=rates)
        if break_engine:
            engine.crash("no power")
        agent = Agent(engine=engine, renderer=renderer, config=config)
        verifier = Watched(FakeVerifier(lambda task, state: score(backend, task, state)), seen)
        rollout = Rollout(agent=agent, pool=Pool(backend, SandboxConfig(warm=0)), verifier=verifier)
        launch = Launch(id="g0.0", group_id="g0", task=task, sibling=0)
        trajectory = await rollout.run(launch, SpanRecorder(launch.id), seed=1)
        await clock.sleep(1)
        assert backend.live == 0, "the sandbox was given back"
        assert backend.snapshots <= 1, "only the image is left"
        return trajectory

    return clock.run_virtual(main())


class Watched:
    """A verifier that notes what it was told."""

    def __init__(self, verifier: FakeVerifier, seen: list[Trajectory] | None) -> None:
        self._verifier = verifier
        self._seen = seen if seen is not None else []

    async def grade(
        self, task: Task, final: Snapshot, pristine: Snapshot, trajectory: Trajectory | None = None
    ) -> Outcome:
        assert trajectory is not None
        self._seen.append(trajectory)
        return await self._verifier.grade(task, final, pristine, trajectory)
