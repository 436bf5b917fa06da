"""A run as a simulated world: what was measured of it, under what was configured, or would be.

    Fitted (programs, engine, boots, steps, publications) ─world(Setup)─► CollectionWorld, simulated

Law: measurements and configuration are kept apart, so that a change of configuration is another `Setup` over the same
measurements. What a configuration does to the work itself (prompts, budgets, the model) is beyond this: programs stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.config import RunConfig
from muster.engine.config import EmbeddedEngineConfig, EmulatedEngineConfig, RouterConfig
from muster.engine.timing import EngineTiming
from muster.errors import UserError
from muster.lab.collection.collection import CollectionWorld, FleetWorld, SandboxWorld, TrainingWorld
from muster.lab.collection.programs import Mishaps
from muster.lab.collection.timed_sandbox import SandboxTimes
from muster.lab.collection.workload import Lognormal, WorkloadConfig
from muster.lab.plan.fit.engine import EngineFit
from muster.lab.plan.fit.programs import Groups
from muster.lab.plan.fit.sharing import Shares
from muster.orchestrator.config import LoopConfig, SchedulerConfig
from muster.publish.config import PublisherConfig
from muster.sandbox.config import SandboxConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Setup of a run, as configured. `limits`: the engine without its timing."""

    schedule: SchedulerConfig
    loop: LoopConfig
    publisher: PublisherConfig
    limits: EmulatedEngineConfig
    replicas: int
    router: RouterConfig
    sandbox: SandboxConfig

    @classmethod
    def of(cls, config: RunConfig) -> Setup:
        """Raises `UserError` for an engine whose cache and batch sizes are not in the configuration."""
        engine = config.engine
        if not isinstance(engine, EmbeddedEngineConfig):
            raise UserError(
                f"the run's engine is {engine.kind}: what its cache holds is not in the configuration, so the run "
                "cannot be simulated from its journal; declare it in a file: muster plan --workload world.toml"
            )
        return cls(
            schedule=config.schedule,
            loop=config.loop,
            publisher=config.publish,
            limits=EmulatedEngineConfig(
                description="fitted",
                timing=EngineTiming(step_s=1.0, prefill_s=1.0),  # replaced by what is fitted
                max_running=engine.max_streams,
                max_step_tokens=engine.prefill_chunk_tokens + engine.max_streams,
                max_model_len=engine.max_model_len,
                kv_capacity_tokens=engine.kv_capacity_tokens,
                block_tokens=8,
            ),
            replicas=engine.replicas,
            router=config.router,
            sandbox=config.sandbox,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBatches:
    """Measured batches of a run, in order of steps. Seconds.

    skipped: batches of a simulation that come before the like of the first of these.
    """

    skipped: int
    ttb_s: tuple[float, ...]
    trainer_wait_s: tuple[float, ...]

    @property
    def ttb_p50_s(self) -> float:
        return float(np.median(self.ttb_s))

    @property
    def batches(self) -> int:
        """To simulate, so that the last of them are the like of these."""
        return self.skipped + len(self.ttb_s)

    @property
    def trainer_wait_mean_s(self) -> float:
        return float(np.mean(self.trainer_wait_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Measurements of a run. `training` has the times; steps and rhythm are configured. `engine`: a fit, or what the
    user named.

    stage_s, pause_s: of a publication, at each engine. alone: shares that were taken out of all times.
    """

    groups: Groups
    measured: MeasuredBatches
    engine: EngineFit | EmulatedEngineConfig
    times: SandboxTimes
    training: TrainingWorld
    stage_s: float
    pause_s: float
    mishaps: Mishaps
    alone: Shares
    notes: tuple[str, ...] = ()

    def world(self, setup: Setup, *, batches: int) -> CollectionWorld:
        """The world of this run under `setup`, which may differ from how it was configured; `batches` are trained."""
        schedule, sandbox, engine = setup.schedule, setup.sandbox, self._engine(setup)
        return CollectionWorld(
            workload=WorkloadConfig(
                groups=schedule.groups_per_batch,
                group_size=schedule.group_size,
                prompt_tokens=Lognormal(median=1.0, cap=1.0),
                max_context_tokens=engine.max_model_len,
            ),
            fleet=FleetWorld(replicas=setup.replicas, engine=engine, router=setup.router),
            sandboxes=SandboxWorld(
                slots=sandbox.slots,
                warm=sandbox.warm,
                verifier_slots=sandbox.verifier_slots,
                boots_per_s=sandbox.boots_per_s,
                slice_s=sandbox.slice_s,
                times=self.times,
            ),
            schedule=schedule,
            training=self.training.model_copy(
                update={
                    "steps": batches,
                    "publisher": setup.publisher,
                    "evaluate_every": setup.loop.evaluate_every,
                    "checkpoint_every": setup.loop.checkpoint_every,
                }
            ),
            mishaps=self.mishaps,
        )

    def _engine(self, setup: Setup) -> EmulatedEngineConfig:
        """Large enough for every program: a run that was recorded was served."""
        publication = {"stage_s": self.stage_s, "commit_s": self.pause_s}
        if isinstance(self.engine, EmulatedEngineConfig):
            return self.engine.model_copy(update=publication)
        longest = max(program.final_tokens for group in self.groups for program in group) + 1
        limits = setup.limits
        length = max(limits.max_model_len, longest)
        update = {
            **publication,
            "timing": self.engine.timing,
            "max_model_len": length,
            "kv_capacity_tokens": max(limits.kv_capacity_tokens, length + 2 * limits.block_tokens),
        }
        return limits.model_copy(update=update)
