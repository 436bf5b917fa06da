"""The control plane of production over an emulated world: what `muster bench control` measures.

    Orchestrator ─ Scheduler ─ Dispatcher ─ Journal (a file) ─ Rollout ─ Agent, Renderer ┬─ Fleet ─ EmulatedReplica × n
                                                                                         └─ Pool ─ FakeBackend

Law: everything but engine, sandbox, verifier's script, trainer and tokenizer is what a run on real machines runs, in
the same process. Replicas, sandboxes, tasks and batches grow with the live trajectories, as a fleet would; what a
trajectory does, does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from muster import clock
from muster.engine.config import EmulatedEngineConfig
from muster.engine.fleet.fleet import Fleet
from muster.engine.timing import EngineTiming
from muster.journal import Journal
from muster.lab.emulated.replica import EmulatedReplica
from muster.lab.fakes.sandbox import FakeBackend
from muster.lab.fakes.trainer import FakeTrainer, FakeTrainerConfig
from muster.lab.world.actor import DONE_FILE, STOP, CharTokenizer
from muster.lab.world.chaos import stream
from muster.metrics import Metrics
from muster.orchestrator.config import LoopConfig, SchedulerConfig
from muster.orchestrator.decisions.scheduler import Scheduler
from muster.orchestrator.dispatch import Dispatcher
from muster.orchestrator.loops import Orchestrator
from muster.orchestrator.parts import Parts
from muster.orchestrator.record import JournalSink
from muster.orchestrator.resume import Standing
from muster.orchestrator.status import PoolStatus, RunStatus
from muster.publish.config import PublisherConfig
from muster.publish.publisher import Publisher
from muster.rollout.agent import Agent
from muster.rollout.attempt import Rollout
from muster.rollout.config import AgentConfig
from muster.rollout.renderer import Renderer
from muster.sandbox.config import DeadlineConfig, SandboxConfig
from muster.sandbox.deadlines import BoundedBackend
from muster.sandbox.pool.pool import Lane, Pool
from muster.sandbox.port import Snapshot
from muster.tasks.config import CurriculumConfig
from muster.tasks.curriculum import Curriculum
from muster.types import Evaluation, ImageSpec, Ints, Limits, Outcome, Session, Task, Trajectory, VerifierSpec, Version
from muster.verifier.attribution import grade

GROUP_SIZE = 8
STEPS = 12
"""Batches of an eighth of the live trajectories: every slot is used one and a half times."""
PER_REPLICA = 256
"""Live trajectories that one replica serves."""


class ControlWorld:
    """Emulated world under the control plane of production.

    Example: `clock.run_virtual(world.run())` of a `ControlWorld(1000, directory, seed=0)`; then `world.turns`.
    """

    def __init__(self, live: int, directory: Path, *, seed: int) -> None:
        self.live = live
        self.most_live = 0
        self.turns = 0
        self._directory = directory
        self._seed = seed

    async def run(self) -> None:
        """One run from its first admission to its last step."""
        with Journal.create(self._directory / "journal.sqlite", meta={}) as journal:
            backend = FakeBackend()
            pool = Pool(BoundedBackend(backend, DeadlineConfig()), _sandboxes(self.live))
            script = ScriptedPolicy(self._seed)
            replicas = [
                EmulatedReplica(f"engine{i}", _ENGINE, policy=script) for i in range(math.ceil(self.live / PER_REPLICA))
            ]
            fleet = Fleet(replicas)
            rollout = Rollout(
                agent=Agent(engine=fleet, renderer=Renderer(CharTokenizer()), config=_AGENT),
                pool=pool,
                verifier=_Verifier(pool, backend),
                released=fleet.release,
            )
            parts = self._parts(journal, rollout, replicas)
            config = LoopConfig(steps=STEPS, checkpoint_every=STEPS, evaluate_every=0)
            await Orchestrator(config, parts, Standing(), directory=self._directory, seed=self._seed).run()
            await pool.close()
        self.turns = script.turns

    def _parts(self, journal: Journal, rollout: Rollout, replicas: Sequence[EmulatedReplica]) -> Parts:
        groups = max(1, self.live // GROUP_SIZE // 8)
        schedule = SchedulerConfig(
            groups_per_batch=groups, group_size=GROUP_SIZE, slots=self.live, max_lag=2 * STEPS, policy="window"
        )
        tasks = [_task(i) for i in range(2 * groups)]
        curriculum = Curriculum(tasks, CurriculumConfig(), stream(self._seed, "curriculum"))
        return Parts(
            journal=journal,
            metrics=Metrics([JournalSink(journal)]),
            scheduler=Scheduler(schedule, curriculum, steps=STEPS),
            curriculum=curriculum,
            dispatcher=Dispatcher(journal, rollout),
            trainer=FakeTrainer(FakeTrainerConfig(step_s=1.0)),
            # the canary's own tolerance: fake trainer and emulated engine make up different numbers
            publisher=Publisher(replicas, PublisherConfig(canary_tolerance=100.0)),
            engines=tuple(replicas),
            retire=lambda publication: None,
            evaluate=_no_evaluation,
            prefetch=rollout.prefetch,
            pool_status=PoolStatus,
            on_status=self._look,
            groups_per_batch=groups,
            canary=np.arange(65, 73, dtype=np.int32),
            temperature=1.0,
        )

    def _look(self, status: RunStatus) -> None:
        self.most_live = max(self.most_live, sum(status.stages.values()))


@dataclass(frozen=True, slots=True)
class _Part:
    """One session's replies. `opening`: STOP tokens in its first prompt; each turn adds two."""

    opening: int
    replies: tuple[Ints, ...]


class ScriptedPolicy:
    """A policy for emulated replicas: 3 to 5 commands of a second or two, 100 to 300 characters each, then the end."""

    def __init__(self, seed: int) -> None:
        self.turns = 0
        self._seed = seed
        self._parts: dict[str, _Part] = {}

    def __call__(self, tokens: Ints, session: Session, version: Version) -> Ints:
        self.turns += 1
        stops = int(np.count_nonzero(tokens == ord(STOP)))
        part = self._parts.get(session.id)
        if part is None:
            part = self._parts[session.id] = _Part(stops, self._replies(session.id))
        turn = (stops - part.opening) // 2
        if turn == len(part.replies) - 1:
            del self._parts[session.id]
        return part.replies[turn]

    def _replies(self, session: str) -> tuple[Ints, ...]:
        rng = stream(self._seed, session)
        word = "yes > done" if rng.random() < 0.5 else "no > other"
        texts = [
            f"{'.' * int(rng.integers(50, 250))}\n```bash\nsleep {rng.lognormal(0.5, 1.0):.3f}; echo {word}\n```{STOP}"
            for _ in range(int(rng.integers(3, 6)))
        ]
        return tuple(np.array([*map(ord, text)], np.int32) for text in (*texts, f"DONE{STOP}"))


@dataclass(frozen=True, slots=True)
class _Verifier:
    """Implements `verifier.port.Verifier`: a fork in the pool's own lane, as a script's, and a second in it."""

    pool: Pool
    backend: FakeBackend

    async def grade(
        self, task: Task, final: Snapshot, pristine: Snapshot, trajectory: Trajectory | None = None
    ) -> Outcome:
        async with self.pool.lease(final, task.limits, f"{task.id}-verify", lane=Lane.VERIFIER) as lease:
            await clock.sleep(1.0)
        reward = float(self.backend.file(final, DONE_FILE) is not None)
        return grade(reward, success_reward=1.0, evidence={"queued_s": lease.queued_s})


_ENGINE = EmulatedEngineConfig(
    timing=EngineTiming(step_s=0.02, prefill_s=0.00005),
    max_running=PER_REPLICA,
    max_step_tokens=8192,
    max_model_len=8192,
    kv_capacity_tokens=8192 * PER_REPLICA,
)
_AGENT = AgentConfig(
    prompt="zero_shot",
    temperature=1.0,
    max_turns=20,
    max_tokens_per_turn=1000,
    max_tokens=5000,
    max_context_tokens=8000,
    command_timeout_s=120.0,
    time_budget_s=3600.0,
)


def _sandboxes(live: int) -> SandboxConfig:
    return SandboxConfig(slots=live + 64, warm=64, verifier_slots=max(8, live // 8))


def _task(index: int) -> Task:
    id = f"task{index:04d}"
    root = Path("/nowhere") / id
    return Task(
        id=id,
        instruction=f"Do {id}.",
        root=root,
        image=ImageSpec(workdir="/app", env={"TASK": id}),
        limits=Limits(),
        verifier=VerifierSpec(tests=root / "tests"),
        digest=id,
        family=f"family{index % 4}",
    )


async def _no_evaluation(step: int) -> Evaluation:
    return Evaluation(
        step=step,
        version=Version(number=step, digest=""),
        tasks=0,
        graded=0,
        passed=0,
        pass_rate=0.0,
        low=0.0,
        high=1.0,
        by_family={},
        ungraded={},
        fingerprint={},
        started=clock.now(),
        ended=clock.now(),
    )
