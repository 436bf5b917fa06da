"""Small simulated runs whose parameters are known, for what reads them back."""

from __future__ import annotations

from typing import Any

from muster.engine.config import EmulatedEngineConfig
from muster.engine.timing import EngineTiming
from muster.lab.collection.collection import CollectionWorld, FleetWorld, SandboxWorld, TrainingWorld
from muster.lab.collection.timed_sandbox import SandboxTimes
from muster.lab.collection.workload import Lognormal, WorkloadConfig
from muster.lab.plan.fit.world import Setup
from muster.orchestrator.config import LoopConfig, SchedulerConfig
from muster.sandbox.config import SandboxConfig

TIMING = EngineTiming(step_s=0.02, row_s=0.0008, context_s=4e-7, prefill_s=2e-4)


def engine(timing: EngineTiming = TIMING, **fields: Any) -> EmulatedEngineConfig:
    return EmulatedEngineConfig(timing=timing, max_running=32, max_model_len=8192, **fields)


def world(**parts: dict[str, Any]) -> CollectionWorld:
    """Two batches of 4 groups of 4 on one engine, all ample; `parts` are changed as by `CollectionWorld.with_`."""
    base = CollectionWorld(
        workload=WorkloadConfig(
            groups=4,
            group_size=4,
            turns=Lognormal(median=4, sigma=0.6, cap=10),
            prompt_tokens=Lognormal(median=300, sigma=0.3, cap=800),
            reply_tokens=Lognormal(median=40, sigma=0.7, cap=200),
            observation_tokens=Lognormal(median=80, sigma=0.7, cap=400),
            tool_s=Lognormal(median=0.5, sigma=0.7, cap=5),
            verify_s=Lognormal(median=1.0, sigma=0.3, cap=5),
            max_context_tokens=8000,
        ),
        fleet=FleetWorld(replicas=1, engine=engine()),
        sandboxes=SandboxWorld(slots=64, verifier_slots=16, times=SandboxTimes(command_s=0.0)),
        schedule=SchedulerConfig(groups_per_batch=4, group_size=4, slots=64),
        training=TrainingWorld(steps=2, step_s=5.0, export_s=0.5, watch_interval_s=5.0),
    )
    return base.with_(**parts) if parts else base


def setup_of(world: CollectionWorld) -> Setup:
    """Configuration of a run in this world."""
    training, sandboxes = world.training, world.sandboxes
    return Setup(
        schedule=world.schedule,
        loop=LoopConfig(
            steps=training.steps, evaluate_every=training.evaluate_every, checkpoint_every=training.checkpoint_every
        ),
        publisher=training.publisher,
        limits=world.fleet.config(),
        replicas=world.fleet.replicas,
        router=world.fleet.router,
        sandbox=SandboxConfig(slots=sandboxes.slots, warm=sandboxes.warm, verifier_slots=sandboxes.verifier_slots),
    )
