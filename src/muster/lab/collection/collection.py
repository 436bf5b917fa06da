"""One collection, simulated: the real orchestrator over a fleet, a pool and a workload that are declared, not real.

    world, seed ─► Orchestrator ─ Scheduler ─ Dispatcher ─ PlannedAttempts ─┬─ Fleet, Router ─ EmulatedReplica × n
                   on the virtual clock                                     └─ Pool ─ TimedBackend      FakeTrainer
                                            └─► Collected: the journal that a run would have written, and counters

Law: everything above the ports is what production runs. The same world and seed give the same journal, byte for byte,
in any process; worlds that differ in routing, sandboxes or scheduling play the same programs (`workload.programs`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from muster import clock
from muster.engine.config import EmulatedEngineConfig, RouterConfig
from muster.engine.fleet.fleet import Fleet
from muster.engine.port import EngineStatistics, Replica
from muster.journal import Journal, SessionRow
from muster.lab.collection.programs import Mishaps, PlannedAttempts, Texts, Verify
from muster.lab.collection.timed_sandbox import SandboxTimes, TimedBackend
from muster.lab.collection.workload import Program, WorkloadConfig, group_programs
from muster.lab.emulated.presets import preset
from muster.lab.emulated.replica import EmulatedReplica
from muster.lab.fakes.trainer import FakeTrainer, FakeTrainerConfig
from muster.metrics import Metrics
from muster.orchestrator.config import LoopConfig, SchedulerConfig
from muster.orchestrator.decisions.expectation import Expectation
from muster.orchestrator.decisions.scheduler import Scheduler
from muster.orchestrator.dispatch import Attempts, Dispatcher
from muster.orchestrator.loops import Orchestrator
from muster.orchestrator.parts import Parts
from muster.orchestrator.record import JournalSink
from muster.orchestrator.resume import Standing
from muster.orchestrator.status import PoolStatus
from muster.publish.config import PublisherConfig
from muster.publish.publisher import Publisher
from muster.sandbox.config import SandboxConfig
from muster.sandbox.pool.pool import Pool, PoolStatistics
from muster.types import Evaluation, ImageSpec, Ints, Launch, Limits, Task, VerifierSpec, Version

Groups = Sequence[Sequence[Program]]
Plan = Callable[[int], Sequence[Program]]


class FleetWorld(BaseModel):
    """The engines: a preset, or a server of your own in its place, with `overrides` laid over either.

    Example: `FleetWorld(replicas=8, preset="h100-llama-8b", overrides={"kv_capacity_tokens": 200_000})`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    replicas: int = Field(default=8, ge=1, description="of one kind")
    preset: str = Field(default="h100-llama-8b", description="built-in or a file, see `muster engine emulate`")
    engine: EmulatedEngineConfig | None = Field(default=None, description="a server of your own; None: the preset")
    overrides: dict[str, Any] = Field(default_factory=dict[str, Any], description="fields of the server to change")
    router: RouterConfig = Field(default_factory=RouterConfig, description="how turns find replicas")

    def config(self) -> EmulatedEngineConfig:
        """Raises `ConfigError` for a preset that does not exist, `ValueError` for overrides that cannot be."""
        server = self.engine or preset(self.preset)
        return EmulatedEngineConfig.model_validate({**_fields(server), **self.overrides}) if self.overrides else server


class SandboxWorld(BaseModel):
    """The sandboxes. Example: `SandboxWorld(slots=64, warm=8)`"""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slots: int = Field(default=64, ge=1, description="agent sandboxes alive at once, closing ones included")
    warm: int = Field(default=0, ge=0, description="forks kept ready for what comes next")
    verifier_slots: int = Field(default=32, ge=1, description="sandboxes for verification alone")
    boots_per_s: float | None = Field(default=None, gt=0, description="starts a second at most")
    slice_s: float | None = Field(default=None, gt=0, description="taking turns: see `SandboxConfig.slice_s`")
    verify: Verify = Field(default="fork", description="in a fork of the frozen state, or in the agent's own slot")
    times: SandboxTimes = Field(default_factory=SandboxTimes, description="seconds of each call")


class TrainingWorld(BaseModel):
    """Training beside collecting. One step at fixed weights is a single batch, and its time."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(default=1, ge=1, description="batches to collect and train")
    step_s: float = Field(default=60.0, ge=0, description="an optimiser step")
    token_s: float = Field(default=0.0, ge=0, description="more for each sampled token of the batch")
    export_s: float = Field(default=1.0, ge=0, description="writing the weights of a publication")
    checkpoint_s: float = Field(default=0.0, ge=0, description="saving the trainer's state")
    checkpoint_every: int = Field(default=1_000_000, ge=1, description="steps between checkpoints; one at the end")
    evaluate_s: float = Field(default=0.0, ge=0, description="an evaluation, during which nothing trains")
    evaluate_every: int = Field(default=0, ge=0, description="steps between evaluations; 0: only at the ends")
    size_bytes: int = Field(default=0, ge=0, description="a publication; the engine says how fast it is read")
    drift_m2: float = Field(default=1e-4, ge=0, description="mean squared log-ratio between consecutive versions")
    publisher: PublisherConfig = Field(default_factory=PublisherConfig, description="what a pause does to requests")
    watch_interval_s: float = Field(default=10.0, gt=0, description="how often engine statistics are read")


class CollectionWorld(BaseModel):
    """Everything that a simulated collection depends on, apart from the seed.

    Example: `CollectionWorld(schedule=SchedulerConfig(groups_per_batch=32, group_size=8, slots=64))`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: WorkloadConfig = Field(default_factory=WorkloadConfig, description="what a batch consists of")
    fleet: FleetWorld = Field(default_factory=FleetWorld, description="engines and router")
    sandboxes: SandboxWorld = Field(default_factory=SandboxWorld, description="pool, boots and verifiers")
    schedule: SchedulerConfig = Field(
        default_factory=lambda: SchedulerConfig(groups_per_batch=32, group_size=8),
        description="how groups become batches",
    )
    training: TrainingWorld = Field(default_factory=TrainingWorld, description="steps and publications")
    mishaps: Mishaps = Field(default_factory=Mishaps, description="attempts lost to infrastructure")
    epochs: int = Field(
        default=0, ge=0, description="earlier groups at each task of the first batches, whose times the scheduler knows"
    )

    @model_validator(mode="after")
    def _consistent(self) -> CollectionWorld:
        ours, theirs = self.workload.group_size, self.schedule.group_size
        if ours != theirs:
            raise ValueError(f"workload.group_size = {ours} and schedule.group_size = {theirs} must be equal")
        longest = self.fleet.config().max_model_len
        if self.workload.max_context_tokens > longest:
            raise ValueError(
                f"workload.max_context_tokens = {self.workload.max_context_tokens}: the engine serves up to {longest} "
                "(max_model_len)"
            )
        return self

    def with_(self, **changes: dict[str, Any]) -> CollectionWorld:
        """A copy with fields of its parts changed, checked again.

        Example: `world.with_(fleet={"replicas": 4}, sandboxes={"slots": 128}, schedule={"slots": 128})`
        """
        parts = {name: {**_fields(getattr(self, name)), **part} for name, part in changes.items()}
        return CollectionWorld.model_validate({**_fields(self), **parts})


def _fields(model: BaseModel) -> dict[str, Any]:
    return {name: getattr(model, name) for name in type(model).model_fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Remains of a collection. `journal` is in memory: close it when it was read.

    engines: each replica's counters at the end. booting_s, stopping_s: sandbox seconds spent on these, in a slot.
    sampled: tokens by launch, those of cancelled attempts included. plan: the programs of a group, by its number.
    """

    world: CollectionWorld
    seed: int
    journal: Journal
    engines: tuple[EngineStatistics, ...]
    pool: PoolStatistics
    booting_s: float
    stopping_s: float
    virtual_s: float
    sampled: Mapping[str, int]
    plan: Plan

    def program(self, task_id: str, sibling: int) -> Program:
        """Program that an attempt at a task of this run plays."""
        return self.plan(number_of(task_id))[sibling]

    @property
    def hit_rate(self) -> float:
        """Prompt tokens that were found in a prefix cache, over all prompt tokens."""
        prompt = sum(e.prompt_tokens for e in self.engines)
        return sum(e.cached_tokens for e in self.engines) / prompt if prompt else 0.0


def simulate(world: CollectionWorld, seed: int, *, groups: Groups | None = None) -> Collected:
    """Live it to its end, on a virtual clock of its own.

    groups: programs to play in the place of `world.workload`'s, [group][sibling]; used again from the first when there
    are not enough. Raises what stops a run: `orchestrator.loops.AdmissionStopped`, `EngineError`, …
    """
    return clock.run_virtual(collect(world, seed, groups=groups))


async def collect(world: CollectionWorld, seed: int, *, groups: Groups | None = None) -> Collected:
    """`simulate` on the running loop, which must be virtual."""
    journal = Journal.in_memory(meta={"run": f"seed {seed}", "config": _config(world)})
    texts = Texts()
    engine = world.fleet.config().model_copy(update={"logprobs": False})  # nobody reads them
    replicas = [EmulatedReplica(f"engine{i}", engine, policy=texts) for i in range(world.fleet.replicas)]
    fleet = Fleet(replicas, world.fleet.router)
    backend = TimedBackend(world.sandboxes.times, seed=seed)
    pool = Pool(backend, pool_config(world.sandboxes))
    plan = _plan(world, seed, groups)
    attempts = PlannedAttempts(
        program=lambda launch: plan(number_of(launch.task.id))[launch.sibling],
        engine=fleet,
        pool=pool,
        verify=world.sandboxes.verify,
        mishaps=world.mishaps,
        texts=texts,
        released=fleet.release,
    )
    started = clock.now()
    journal.record(SessionRow(id=1, started=started, pid=0))
    standing = Standing(scheduler=known(world, seed) if world.epochs else None)
    driven = parts(world, journal, attempts, fleet.replicas, NumberedTasks())
    await Orchestrator(loop(world.training), driven, standing, directory=_NOWHERE, seed=seed).run()
    await pool.close()
    journal.record(SessionRow(id=1, started=started, pid=0, ended=clock.now(), reason="done"))
    return Collected(
        world=world,
        seed=seed,
        journal=journal,
        engines=tuple([await replica.statistics() for replica in replicas]),
        pool=pool.statistics(),
        booting_s=backend.booting_s,
        stopping_s=backend.stopping_s,
        virtual_s=clock.now(),
        sampled=attempts.sampled,
        plan=plan,
    )


class NumberedTasks:
    """A task source without end: task n is what group n plays. Nothing is learned and nothing quarantined."""

    quarantined: Mapping[str, str] = MappingProxyType({})

    def __init__(self, task: Callable[[int], Task] | None = None) -> None:
        """task: makes the n-th; None: one without files."""
        self._task = task or numbered
        self._next = 0

    def next(self) -> Task:
        self._next += 1
        return self._task(self._next - 1)

    def record(self, task_id: str, rewards: Sequence[float]) -> None:
        pass

    def fault(self, task_id: str, reason: str) -> bool:
        return False

    def state(self) -> dict[str, object]:
        return {}


def numbered(number: int) -> Task:
    """The task that the programs of group `number` are attempts at."""
    id = f"task{number:05d}"
    root = _NOWHERE / id
    return Task(
        id=id,
        instruction="",
        root=root,
        image=ImageSpec(docker_image=id),
        limits=Limits(),
        verifier=VerifierSpec(tests=root / "tests"),
        digest=id,
    )


def number_of(task_id: str) -> int:
    """The group whose programs are attempts at this task."""
    return int(task_id.removeprefix("task"))


def _plan(world: CollectionWorld, seed: int, groups: Groups | None) -> Plan:
    if groups is not None:
        return lambda number: groups[number % len(groups)]

    @cache
    def plan(number: int) -> tuple[Program, ...]:
        return group_programs(world.workload, seed, number)

    return plan


def known(world: CollectionWorld, seed: int) -> dict[str, Any]:
    """The scheduler's state after earlier epochs: how long attempts at each task took, on engines with nothing else."""
    expectation = Expectation()
    engine = world.fleet.config()
    tasks = world.training.steps * world.schedule.groups_per_batch
    for visit in range(1, world.epochs + 1):
        for number in range(math.ceil(tasks * world.schedule.over_launch)):
            for program in group_programs(world.workload, seed, number, visit=visit):
                thinking_s = program.sampled_tokens / engine.stream_decode_rate()
                expectation.took(numbered(number).id, thinking_s + program.tool_s + program.verify_s)
    fresh = Scheduler(world.schedule, NumberedTasks(), steps=world.training.steps)
    return {**fresh.state(), "expectation": expectation.state()}


def pool_config(sandboxes: SandboxWorld) -> SandboxConfig:
    """The pool of such sandboxes."""
    return SandboxConfig(
        slots=sandboxes.slots,
        warm=sandboxes.warm,
        verifier_slots=sandboxes.verifier_slots,
        boots_per_s=sandboxes.boots_per_s,
        slice_s=sandboxes.slice_s,
    )


class Playing(Attempts, Protocol):
    """Attempts that know which sandboxes come next."""

    def prefetch(self, launches: Sequence[Launch]) -> None: ...


def parts(
    world: CollectionWorld, journal: Journal, attempts: Playing, replicas: Sequence[Replica], tasks: NumberedTasks
) -> Parts:
    """Parts that an orchestrator drives in such a world; attempts, replicas and tasks may be real ones."""
    training = world.training
    trainer = FakeTrainer(
        FakeTrainerConfig(
            step_s=training.step_s,
            token_s=training.token_s,
            export_s=training.export_s,
            checkpoint_s=training.checkpoint_s,
            size_bytes=training.size_bytes,
            drift_m2=training.drift_m2,
        ),
        memory={},
    )
    # the canary's own tolerance: fake trainer and emulated engine make up different numbers
    publisher = training.publisher.model_copy(update={"canary_tolerance": 100.0})
    return Parts(
        journal=journal,
        metrics=Metrics([JournalSink(journal)]),
        scheduler=Scheduler(world.schedule, tasks, steps=training.steps),
        curriculum=tasks,
        dispatcher=Dispatcher(journal, attempts),
        trainer=trainer,
        publisher=Publisher(replicas, publisher),
        engines=tuple(replicas),
        retire=lambda publication: None,
        evaluate=_Evaluate(training.evaluate_s),
        prefetch=attempts.prefetch,
        pool_status=PoolStatus,
        on_status=lambda status: None,
        groups_per_batch=world.schedule.groups_per_batch,
        canary=_CANARY,
        temperature=1.0,
    )


_NOWHERE = Path("/nowhere")  # a collection writes no files
_CANARY: Ints = np.arange(16, 24, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class _Evaluate:
    """An evaluation that takes its time and says nothing."""

    seconds: float

    async def __call__(self, step: int) -> Evaluation:
        started = clock.now()
        await clock.sleep(self.seconds)
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
            started=started,
            ended=clock.now(),
        )


def loop(training: TrainingWorld) -> LoopConfig:
    """Length and rhythm of such a run."""
    return LoopConfig(
        steps=training.steps,
        checkpoint_every=training.checkpoint_every,
        evaluate_every=training.evaluate_every,
        watch_interval_s=training.watch_interval_s,
    )


def _config(world: CollectionWorld) -> dict[str, Any]:
    """Run configuration as far as a report and a fit read it, under the names of a real one."""
    engine = world.fleet.config()
    return {
        "schedule": world.schedule.model_dump(mode="json"),
        "engine": {"kv_capacity_tokens": engine.kv_capacity_tokens, "replicas": world.fleet.replicas},
        "sandbox": {"slots": world.sandboxes.slots, "verifier_slots": world.sandboxes.verifier_slots},
    }
