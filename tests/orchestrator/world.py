"""A whole run on the virtual clock: the real loops, scheduler, journal, rollouts and publisher over fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from factories import make_task
from muster import clock
from muster.evaluate import Evaluator
from muster.journal import Journal, LaunchRow
from muster.lab.fakes.engine import FakeRates, FakeReplica
from muster.lab.fakes.sandbox import FakeBackend, FakeFaults
from muster.lab.fakes.trainer import FakeTrainer, FakeTrainerConfig
from muster.lab.fakes.verifier import FakeVerifier, FakeVerifierFaults
from muster.metrics import Metrics
from muster.orchestrator.config import EvaluateConfig, LoopConfig, SchedulerConfig
from muster.orchestrator.decisions.scheduler import Scheduler
from muster.orchestrator.dispatch import Dispatcher, derived_seed
from muster.orchestrator.loops import Orchestrator
from muster.orchestrator.parts import Parts
from muster.orchestrator.record import JournalSink
from muster.orchestrator.resume import standing
from muster.orchestrator.status import PoolStatus, RunStatus
from muster.publish.config import PublisherConfig
from muster.publish.publisher import Publisher
from muster.rollout.agent import Agent
from muster.rollout.attempt import Rollout
from muster.rollout.config import AgentConfig
from muster.rollout.renderer import Renderer
from muster.sandbox.config import SandboxConfig
from muster.sandbox.pool.pool import Pool
from muster.sandbox.port import Snapshot
from muster.tasks.config import CurriculumConfig
from muster.tasks.curriculum import Curriculum
from muster.trainer.config import DivergenceLimit
from muster.types import Ints, Session, Task, Version
from muster.verifier.reward import Problem
from rollout.tokens import STOP, CharTokenizer

CANARY = np.array([ord(c) for c in "canary"], np.int32)
AGENT = AgentConfig(temperature=1.0, max_context_tokens=4000)  # a token is a character here
HANG_S = 20_000.0  # virtual; a hung verifier takes its 600 s, a few times over


@dataclass(kw_only=True)
class World:
    """One seeded run in `directory`. `run()` may be called again: it then resumes from the journal."""

    directory: Path
    seed: int = 0
    steps: int = 4
    max_lag: int = 0
    schedule: dict[str, Any] = field(default_factory=dict)
    loop: dict[str, Any] = field(default_factory=dict)
    sandbox_faults: FakeFaults = field(default_factory=FakeFaults)
    verifier_faults: FakeVerifierFaults = field(default_factory=FakeVerifierFaults)
    broken_tasks: frozenset[str] = frozenset()  # their verifier fails on the untouched control as well
    trainer: FakeTrainerConfig = field(default_factory=FakeTrainerConfig)
    divergence_limit: DivergenceLimit | None = None
    statuses: list[RunStatus] = field(default_factory=list)
    backend: FakeBackend | None = None
    engine: FakeReplica | None = None
    orchestrator: Orchestrator | None = None

    def tasks(self) -> list[Task]:
        return [make_task(f"task{i}", family=f"family{i % 3}", max_turns=2) for i in range(12)]

    def journal(self, *, write: bool = False) -> Journal:
        path = self.directory / "journal.db"
        return Journal.open(path, write=write) if path.exists() else Journal.create(path, meta={"run": "world"})

    async def run(self, *, stop_after_s: float | None = None, kill_after_s: float | None = None) -> bool | None:
        """True when done, False when stopped, None when killed at `kill_after_s`."""
        with self.journal(write=True) as journal:
            self.orchestrator = self._built(journal)
            try:
                async with clock.timeout(kill_after_s or HANG_S):
                    if stop_after_s is not None:
                        asyncio.get_running_loop().call_later(stop_after_s, self.orchestrator.stop)
                    return await self.orchestrator.run()
            except TimeoutError:
                assert kill_after_s is not None, f"hangs: {self.statuses[-1]}"
                return None

    def _built(self, journal: Journal) -> Orchestrator:
        rng = np.random.default_rng([self.seed, journal.count(LaunchRow)])
        backend = self.backend = FakeBackend(faults=self.sandbox_faults, rng=rng)
        pool = Pool(backend, SandboxConfig(slots=8, warm=2, verifier_slots=4))
        verifier = FakeVerifier(self._score, faults=self.verifier_faults, rng=rng)
        engine = self.engine = FakeReplica("engine0", policy=self._policy, rates=FakeRates(capacity=16))
        agent = Agent(engine=engine, renderer=Renderer(CharTokenizer()), config=AGENT)
        rollout = Rollout(agent=agent, pool=pool, verifier=verifier)
        dispatcher = Dispatcher(journal, rollout)
        tasks = self.tasks()
        curriculum = Curriculum(tasks, CurriculumConfig(), np.random.default_rng(self.seed))
        config = SchedulerConfig.model_validate(
            {"groups_per_batch": 2, "group_size": 4, "slots": 16, "max_lag": self.max_lag, **self.schedule}
        )
        parts = Parts(
            journal=journal,
            metrics=Metrics([JournalSink(journal)]),
            scheduler=Scheduler(config, curriculum, steps=self.steps),
            curriculum=curriculum,
            dispatcher=dispatcher,
            trainer=FakeTrainer(self.trainer),
            publisher=Publisher([engine], PublisherConfig(canary_tolerance=100.0)),
            engines=(engine,),
            retire=lambda publication: None,
            evaluate=Evaluator(
                EvaluateConfig(),
                journal=journal,
                dispatcher=dispatcher,
                engine=engine,
                tasks=tasks[:4],
                fingerprint={"engine": "fake"},
                seed=self.seed,
            ),
            prefetch=rollout.prefetch,
            pool_status=PoolStatus,
            on_status=self.statuses.append,
            groups_per_batch=config.groups_per_batch,
            canary=CANARY,
            temperature=1.0,
            divergence_limit=self.divergence_limit,
        )
        here = standing(journal, self.directory, {t.id: t for t in tasks})
        loop = LoopConfig.model_validate({"steps": self.steps, "checkpoint_every": 2, "evaluate_every": 2, **self.loop})
        return Orchestrator(loop, parts, here, directory=self.directory, seed=self.seed)

    def _policy(self, tokens: Ints, session: Session, version: Version) -> Sequence[int]:
        """Half of the replies do the task; how long one takes varies by a factor of ten."""
        rng = np.random.default_rng(derived_seed(self.seed, f"{session.id}/{len(tokens)}"))
        command = "echo yes > done" if rng.random() < 0.5 else "echo no > other"
        padding = "." * int(rng.integers(1, 60))
        return [ord(c) for c in f"{padding}\n```bash\n{command}\n```{STOP}"]

    def _score(self, task: Task, state: Snapshot) -> float | Problem:
        assert self.backend is not None
        if task.id in self.broken_tasks:
            return Problem.MISSING
        return 1.0 if self.backend.file(state, "/app/done") else 0.0
