"""One life of the orchestrator in a simulated world: the process that a resume starts and a kill ends.

    SharedParts (outlive it: replicas, tasks, chaos, laws) + journal ─► RunProcess: scheduler, loops, pool, trainer

Law: everything above the ports is what production runs; what is below them is fake, and watched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from muster.engine.config import RouterConfig
from muster.engine.fleet.fleet import Fleet
from muster.engine.port import Engine, Replica
from muster.journal import Journal
from muster.lab.fakes.engine import FakeRates, FakeReplica
from muster.lab.fakes.sandbox import FakeBackend, FakeDisk
from muster.lab.fakes.trainer import FakeTrainer, FakeTrainerConfig
from muster.lab.fakes.verifier import FakeVerifier, FakeVerifierFaults
from muster.lab.world import breaks
from muster.lab.world.actor import DONE_FILE, Actor, CharTokenizer
from muster.lab.world.chaos import Chaos, Fault, stream
from muster.lab.world.crashing_journal import CrashingJournal
from muster.lab.world.faulty_engine import FaultyReplica
from muster.lab.world.faulty_sandbox import FaultyBackend
from muster.lab.world.laws import MAX_TOKENS_PER_TURN, REFERENCE_TOKENS_PER_S, Law, Laws
from muster.lab.world.scenario import Scenario
from muster.lab.world.watched import WatchedAttempts, WatchedEngine, WatchedKeeps, WatchedTrainer
from muster.metrics import Metrics
from muster.orchestrator.config import LoopConfig, SchedulerConfig
from muster.orchestrator.dispatch import Dispatcher
from muster.orchestrator.loops import Orchestrator
from muster.orchestrator.parts import Parts
from muster.orchestrator.record import JournalSink
from muster.orchestrator.resume import Standing, standing
from muster.orchestrator.status import PoolStatus
from muster.publish.config import PublisherConfig
from muster.publish.publisher import Publisher
from muster.rollout.agent import Agent
from muster.rollout.attempt import Rollout
from muster.rollout.config import AgentConfig
from muster.rollout.renderer import Renderer
from muster.sandbox.config import DeadlineConfig, SandboxConfig
from muster.sandbox.deadlines import BoundedBackend
from muster.sandbox.pool.pool import Pool
from muster.sandbox.port import Snapshot
from muster.tasks.config import CurriculumConfig
from muster.tasks.curriculum import Curriculum
from muster.trainer.config import DivergenceLimit
from muster.types import Evaluation, ImageSpec, Limits, Task, VerifierSpec
from muster.verifier.reward import Problem

Evaluate = Callable[[int], Awaitable[Evaluation]]
MakeEvaluate = Callable[[Journal, Dispatcher, Engine, Sequence[Task]], Evaluate]

_NOWHERE = Path("/nowhere")
"""The directory of a run: a world writes no files."""
_CANARY = np.array([ord(c) for c in "canary"], np.int32)


class SharedParts:
    """Parts of a world that all its lives share: its chance, its laws, its engines and its tasks."""

    def __init__(self, scenario: Scenario, make_evaluate: MakeEvaluate, broken: Law | None) -> None:
        self.scenario = scenario
        self.make_evaluate = make_evaluate
        self.broken = broken
        self.chaos = Chaos(scenario.seed, scenario.rates)
        self.laws = Laws(scenario, self.chaos)
        self.tasks = [_task(i) for i in range(scenario.workload.tasks)]
        rate = scenario.rates.get(Fault.VERIFIER_BROKEN, 0.0)
        self.unverifiable = {t.id for t in self.tasks[1:] if stream(scenario.seed, t.id).random() < rate}
        actor = Actor(scenario, self.chaos)
        self.replicas = [_replica(scenario, i, actor, self.chaos) for i in range(scenario.fleet.replicas)]
        self.disk = FakeDisk()
        self.checkpoints: dict[Path, str] = {}
        self.wordless: set[str] = set()
        """Kept states whose word died with a process, between the two: nobody can ask for them, their time runs out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProcess:
    """Parts of one process."""

    journal: CrashingJournal
    backend: FaultyBackend
    pool: Pool
    scheduler: breaks.BrokenScheduler
    orchestrator: Orchestrator


def begin(shared: SharedParts, journal: CrashingJournal) -> RunProcess:
    """Start a process where the journal says that the run stands."""
    world, chaos = shared.scenario, shared.chaos
    backend = FaultyBackend(FakeBackend(disk=shared.disk), world, chaos, leaks=shared.broken is Law.SANDBOXES)
    pool = Pool(BoundedBackend(backend, DeadlineConfig()), _sandboxes(world))
    schedule, agent = _schedule(world), _agent(world)
    breaks.settings(shared.broken, schedule, agent)
    serving = Fleet(shared.replicas, RouterConfig(policy=world.fleet.routing, probe_every_s=10.0))
    engine = WatchedEngine(serving, chaos)
    keeps = WatchedKeeps(journal, pool.backend, float(agent["keep_every_s"]), shared.laws)
    rollout = Rollout(
        agent=Agent(engine=engine, renderer=Renderer(CharTokenizer()), config=AgentConfig.model_validate(agent)),
        pool=pool,
        verifier=_verifier(shared, backend.inner),
        keeper=keeps,
        released=serving.release,
    )
    attempts = WatchedAttempts(breaks.BrokenAttempts(rollout, shared.broken), shared.laws)
    dispatcher = Dispatcher(journal, attempts, keeps)
    here = _standing(shared, journal)
    curriculum = _curriculum(shared, here)
    scheduler = breaks.BrokenScheduler(SchedulerConfig.model_validate(schedule), curriculum, steps=world.steps)
    scheduler.broken = shared.broken
    parts = Parts(
        journal=journal,
        metrics=Metrics([JournalSink(journal)]),
        scheduler=scheduler,
        curriculum=curriculum,
        dispatcher=dispatcher,
        trainer=_trainer(shared),
        publisher=_publisher(shared, serving.replicas),
        engines=serving.replicas,
        serves=serving.serving,
        retire=lambda publication: None,
        evaluate=shared.make_evaluate(journal, dispatcher, engine, shared.tasks[:2]),
        prefetch=rollout.prefetch,
        pool_status=PoolStatus,
        on_status=lambda status: None,
        groups_per_batch=world.groups_per_batch,
        canary=_CANARY,
        temperature=1.0,
        divergence_limit=_divergence_limit(shared),
    )
    return RunProcess(
        journal=journal,
        backend=backend,
        pool=pool,
        scheduler=scheduler,
        orchestrator=Orchestrator(_loop(world), parts, here, directory=_NOWHERE, seed=world.seed),
    )


def _standing(shared: SharedParts, journal: CrashingJournal) -> Standing:
    tasks = {t.id: t for t in shared.tasks}
    found = standing(journal, _NOWHERE, tasks, exists=shared.checkpoints.__contains__)
    return breaks.standing(shared.broken, found)


def _sandboxes(world: Scenario) -> SandboxConfig:
    fleet = world.fleet
    return SandboxConfig(slots=fleet.sandboxes, warm=fleet.warm, verifier_slots=fleet.verifiers, slice_s=fleet.slice_s)


def _curriculum(shared: SharedParts, here: Standing) -> Curriculum:
    rng = stream(shared.scenario.seed, f"curriculum/{here.submissions}")
    curriculum = Curriculum(shared.tasks, CurriculumConfig(), rng)
    if here.curriculum:
        curriculum.restore(here.curriculum)
    return curriculum


def _replica(world: Scenario, index: int, actor: Actor, chaos: Chaos) -> FaultyReplica:
    fleet = world.fleet
    rates = FakeRates(
        prefill_tokens_per_s=fleet.prefill_tokens_per_s,
        decode_token_s=fleet.decode_token_s,
        stage_s=fleet.stage_s,
        capacity=fleet.streams,
        max_model_len=40_000,
        cached_sequences=4,
    )
    return FaultyReplica(FakeReplica(f"engine{index}", policy=actor.reply, rates=rates), chaos)


def _trainer(shared: SharedParts) -> WatchedTrainer:
    world = shared.scenario
    config = FakeTrainerConfig(step_s=world.fleet.step_s, drift_m2=world.scheduling.drift**2)
    inner = FakeTrainer(config, memory=shared.checkpoints)
    return WatchedTrainer(inner, shared.laws, shared.chaos, forgets=shared.broken is Law.WEIGHTS)


def _divergence_limit(shared: SharedParts) -> DivergenceLimit | None:
    limit = shared.scenario.scheduling.refill_k3
    if limit is None or shared.broken is Law.DIVERGENCE:
        return None
    return DivergenceLimit(max_k3=limit, action="refill")


def _publisher(shared: SharedParts, replicas: Sequence[Replica]) -> Publisher:
    fleet = shared.scenario.fleet
    # the canary's own tolerance: fake trainer and fake engine make up different numbers
    config = PublisherConfig(in_flight=fleet.in_flight, cache=fleet.cache, canary_tolerance=100.0)
    return Publisher(replicas, config)


def _verifier(shared: SharedParts, backend: FakeBackend) -> FakeVerifier:
    rates, injected = shared.scenario.rates, shared.chaos.injected

    def score(task: Task, state: Snapshot) -> float | Problem:
        if task.id in shared.unverifiable:
            injected[Fault.VERIFIER_BROKEN] += 1
            return Problem.MISSING
        return 1.0 if backend.file(state, DONE_FILE) else 0.0

    faults = FakeVerifierFaults(
        crash=rates.get(Fault.VERIFIER_CRASH, 0.0),
        hang=rates.get(Fault.VERIFIER_HANG, 0.0),
        interruption=rates.get(Fault.VERIFIER_LOST, 0.0),
    )
    latency_s = shared.scenario.workload.verify_s
    return FakeVerifier(score, latency_s=latency_s, faults=faults, rng=shared.chaos.rng, injected=injected)


def _loop(world: Scenario) -> LoopConfig:
    return LoopConfig(
        steps=world.steps,
        checkpoint_every=world.checkpoint_every,
        evaluate_every=world.evaluate_every,
        watch_interval_s=120.0,
    )


def _schedule(world: Scenario) -> dict[str, Any]:
    names = ("groups_per_batch", "group_size", "min_group", "max_lag", "policy", "slots", "max_attempts")
    options = ("order", "over_launch", "surplus", "concurrency", "reuse", "max_divergence")
    return {n: getattr(world, n) for n in names} | {n: getattr(world.scheduling, n) for n in options}


def _agent(world: Scenario) -> dict[str, Any]:
    return {
        "prompt": "zero_shot",
        "temperature": 1.0,
        "max_turns": 40,
        "max_tokens_per_turn": MAX_TOKENS_PER_TURN,
        "max_tokens": 20_000,
        "max_context_tokens": 30_000,
        "command_timeout_s": 120.0,
        "time_budget_s": world.time_budget_s,
        "reference_tokens_per_s": REFERENCE_TOKENS_PER_S,
        "keep_every_s": world.keep_every_s,
    }


def _task(index: int) -> Task:
    id = f"task{index:02d}"
    return Task(
        id=id,
        instruction=f"Do {id}.",
        root=_NOWHERE / id,
        image=ImageSpec(),
        limits=Limits(),
        verifier=VerifierSpec(tests=_NOWHERE / id / "tests"),
        digest=id,
        family=f"family{index % 4}",
    )
