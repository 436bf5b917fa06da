"""A simulated world fitted to a real run: its programs, its engine, its pool, its trainer.

    journal ─► programs, engine timing, boots, steps, publications ─┐
    configuration ─► Setup: slots, schedule, limits ────────────────┴► Fitted ─world(setup)─► World, simulated

Law: what was measured (`Fitted`) and what was configured (`Setup`) are kept apart, so that a change of configuration is
another `Setup` over the same measurements. Medians stand for what happens once a step. What a journal does not tell is
left at the simulation's defaults, and said in `notes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from muster.config import RunConfig
from muster.engine.emulated.config import EmulatedEngineConfig
from muster.errors import UserError
from muster.journal import BatchRow, DeviceRow, GroupRow, Journal, SpanRow, StepRow, TrajectoryRow
from muster.orchestrator.config import SchedulerConfig
from muster.orchestrator.loops import LoopConfig
from muster.publish.publisher import PublisherConfig
from muster.sim.collection import FleetWorld, SandboxWorld, TrainingWorld, World
from muster.sim.fit_engine import EngineFit, by_owner, fit_timing, visits_of
from muster.sim.fit_programs import (
    Groups,
    SandboxSeconds,
    common_tokens,
    graded_groups,
    infrastructure_losses,
    program_of,
    sandbox_seconds,
)
from muster.sim.programs import Mishaps
from muster.sim.timed_sandbox import SandboxTimes
from muster.sim.workload import Lognormal, WorkloadConfig
from muster.types import DeviceState, PublicationRecord

TRAINER = "trainer"
RECENT = 8
"""Batches of a long run that are fitted, the latest: an older policy did other work."""
_APART = 4.0
"""Factor between the medians of two kinds of starts that makes them two kinds: forks kept warm, and boots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What was configured. `limits`: the engine without its timing; sandbox numbers as in `SandboxConfig`."""

    schedule: SchedulerConfig
    loop: LoopConfig
    publisher: PublisherConfig
    limits: EmulatedEngineConfig
    replicas: int
    slots: int
    warm: int
    verifier_slots: int
    boots_per_s: float | None = None

    @classmethod
    def of(cls, config: RunConfig, replicas: int = 1) -> Setup:
        engine = config.engine
        return cls(
            schedule=config.schedule,
            loop=config.loop,
            publisher=config.publish,
            limits=EmulatedEngineConfig(
                description="fitted",
                timing={"step_s": 0.02, "prefill_s": 0.0005},
                max_running=engine.max_streams,
                max_step_tokens=engine.prefill_chunk_tokens + engine.max_streams,
                max_model_len=engine.max_model_len,
                kv_capacity_tokens=engine.kv_capacity_tokens,
                block_tokens=8,
            ),
            replicas=replicas,
            slots=config.sandbox.slots,
            warm=config.sandbox.warm,
            verifier_slots=config.sandbox.verifier_slots,
            boots_per_s=config.sandbox.boots_per_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run showed of its batches, in order of steps. Seconds."""

    ttb_s: tuple[float, ...]
    trainer_wait_s: tuple[float, ...]

    @property
    def ttb_p50_s(self) -> float:
        return float(np.median(self.ttb_s))

    @property
    def trainer_wait_mean_s(self) -> float:
        return float(np.mean(self.trainer_wait_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What was measured. `skipped`: batches at the beginning of a simulation that stand for those not fitted."""

    groups: Groups
    measured: Measured
    skipped: int
    engine: EngineFit | EmulatedEngineConfig  # fitted, or named by the user
    times: SandboxTimes
    training: Mapping[str, float]  # fields of `TrainingWorld`
    stage_s: float
    pause_s: float
    mishaps: Mishaps
    notes: tuple[str, ...] = ()

    def world(self, setup: Setup, *, batches: int | None = None) -> World:
        """The world of this run under `setup`, which may differ from how it was configured.

        batches: to simulate; None: as many as were fitted, after those that are skipped.
        """
        schedule, engine = setup.schedule, self._engine(setup)
        steps = batches or len(self.measured.ttb_s) + self.skipped
        return World(
            workload=WorkloadConfig(
                groups=schedule.groups_per_batch,
                group_size=schedule.group_size,
                prompt_tokens=Lognormal(median=1.0, cap=1.0),
                max_context_tokens=engine.max_model_len,
            ),
            fleet=FleetWorld(replicas=setup.replicas, engine=engine),
            sandboxes=SandboxWorld(
                slots=setup.slots,
                warm=setup.warm,
                verifier_slots=setup.verifier_slots,
                boots_per_s=setup.boots_per_s,
                times=self.times,
            ),
            schedule=schedule,
            training=TrainingWorld(
                steps=steps,
                publisher=setup.publisher,
                evaluate_every=setup.loop.evaluate_every,
                checkpoint_every=setup.loop.checkpoint_every,
                **self.training,
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


def fit_run(journal: Journal, setup: Setup, *, engine: EmulatedEngineConfig | None = None) -> Fitted:
    """Fit the latest batches of a run. `engine`: take this server instead of fitting one.

    Raises `UserError` when the run is too short to learn from.
    """
    batches, skipped = _recent(journal.rows(BatchRow), setup.schedule.max_lag)
    order = _order(journal.rows(GroupRow), batches)
    rows = journal.rows(TrajectoryRow)
    spans = by_owner(journal.rows(SpanRow))
    chosen = set(order)
    own = [t for t in rows if t.purpose == "train" and t.group_id in chosen]
    groups = graded_groups(own, order)
    if not groups:
        raise UserError("the run has no complete group yet: there is nothing to plan with")
    seconds = [sandbox_seconds(spans.get(t.id, ())) for t in own]
    times = sandbox_times(seconds, [len(g) for g in groups], warm=setup.warm)
    shared = common_tokens(groups)
    boot_s = times.boot_s.median
    programs = tuple(
        tuple(program_of(t, spans.get(t.id, ()), verifier_boot_s=boot_s, common_tokens=shared) for t in members)
        for members in groups
    )
    stage_s = _median(p.stage_s for p in _published(journal))
    pause_s = _median(p.pause_s for p in _published(journal))
    sampled = {t.id: t.sampled_tokens for t in own}
    visits = [v for t in rows for v in visits_of(t, spans.get(t.id, ()))]
    return Fitted(
        groups=programs,
        measured=_measured(batches),
        skipped=skipped,
        engine=engine or fit_timing(visits, setup.limits, replicas=setup.replicas),
        times=times,
        training=training_times(journal, batches, sampled, stage_s + pause_s),
        stage_s=stage_s,
        pause_s=pause_s,
        mishaps=Mishaps(**infrastructure_losses(own)),
        notes=_notes(groups, journal.count(GroupRow), engine),
    )


def measured(journal: Journal) -> Measured:
    """Of a run, as far as `fit_run` would look. Raises `UserError` when it has no batch."""
    return _measured(_recent(journal.rows(BatchRow), 0)[0])


def _measured(batches: Sequence[BatchRow]) -> Measured:
    return Measured(
        ttb_s=tuple(b.ready_at - b.opened_at for b in batches),
        trainer_wait_s=tuple(max(0.0, b.ready_at - b.trainer_free_at) for b in batches),
    )


def sandbox_times(seconds: Sequence[SandboxSeconds], groups: Sequence[int], *, warm: int) -> SandboxTimes:
    """Boots, images and freezing. With warm forks, starts are of two kinds; where they are clearly apart, the slow
    ones are the boots, and where they are not, being warm made no difference that could be seen."""
    boots = np.array([s.boot_s for s in seconds if s.boot_s is not None], np.float64)
    images = [s.image_s for s in seconds if s.image_s is not None]
    freezes = [s.snapshot_s for s in seconds if s.snapshot_s is not None]
    return SandboxTimes(
        image_s=Lognormal(median=float(np.median(images)) if images else 0.0),
        boot_s=_lognormal(_cold(boots) if warm else boots),
        command_s=0.0,
        snapshot_s=float(np.median(freezes)) if freezes else 0.0,
    )


def training_times(
    journal: Journal, batches: Sequence[BatchRow], sampled: Mapping[str, int], published_s: float
) -> dict[str, float]:
    """Fields of `TrainingWorld`: seconds of a step, an export, an evaluation and a checkpoint.

    published_s: of a publication, what the engines account for; the rest of its latency is the trainer's.
    """
    members = {b.step: sum(sampled.get(m, 0) for m in b.members) for b in batches}
    step_s, token_s = _step_times([s for s in journal.rows(StepRow) if members.get(s.step)], members)
    evaluations = journal.evaluations()
    later = [e for e in evaluations if e.step > 0] or evaluations
    latency_s = _median(p.latency_s for p in _published(journal))
    return {
        "step_s": step_s,
        "token_s": token_s,
        "export_s": max(0.0, latency_s - published_s),
        "evaluate_s": _median(e.ended - e.started for e in later),
        "checkpoint_s": _checkpoint_s(journal.rows(DeviceRow, "device = ?", TRAINER)),
    }


def _published(journal: Journal) -> list[PublicationRecord]:
    """Without the first, which waits for everybody's start."""
    records = journal.publications()
    first = min((p.version.number for p in records), default=0)
    return [p for p in records if p.version.number > first] or records


def _step_times(steps: Sequence[StepRow], tokens: dict[int, int]) -> tuple[float, float]:
    """Seconds a step, and seconds more for each sampled token: a trainer that reports its passes says which part
    grows with the batch; of another, all is taken to be constant."""
    durations = [s.ended - s.started for s in steps]
    passes = [
        s.metrics["forward_s"] + s.metrics["backward_s"]
        for s in steps
        if "forward_s" in s.metrics and "backward_s" in s.metrics
    ]
    if not steps or len(passes) < len(steps):
        return _median(durations), 0.0
    shares = [min(p, d) / tokens[s.step] for p, d, s in zip(passes, durations, steps, strict=True)]
    return _median(d - min(p, d) for p, d in zip(passes, durations, strict=True)), _median(shares)


def _checkpoint_s(rows: Iterable[DeviceRow]) -> float:
    return _median(r.end - r.start for r in rows if r.state == DeviceState.CHECKPOINT)


def _recent(batches: Sequence[BatchRow], max_lag: int) -> tuple[Sequence[BatchRow], int]:
    """The batches to fit, and how many a simulation makes before it reaches the like of the first of them."""
    if not batches:
        raise UserError("no batch of this run has become ready yet: there is nothing to plan with")
    if len(batches) <= RECENT:
        return batches, 0
    return batches[-RECENT:], 1 + max_lag


def _order(groups: Sequence[GroupRow], batches: Sequence[BatchRow]) -> list[str]:
    """Ids of the groups that were admitted for these batches, those dropped included, in order of submission."""
    members = {id for b in batches for id in b.groups}
    known = [g.submission for g in groups if g.id in members]
    first = min(known, default=0)
    return [g.id for g in sorted(groups, key=lambda g: g.submission) if g.submission >= first]


def _notes(groups: Sequence[object], admitted: int, engine: object) -> tuple[str, ...]:
    notes: list[str] = []
    if len(groups) < 8:
        notes.append(f"only {len(groups)} complete groups of {admitted} to play: draws of them differ little")
    if engine is not None:
        notes.append("the engine is the one that was named, not fitted to the run")
    return tuple(notes)


def _cold(boots_N: np.ndarray) -> np.ndarray:
    """The slow kind, where a cut of the logarithms at the widest gap leaves two kinds that are `_APART`."""
    ordered = np.sort(boots_N[boots_N > 0])
    if len(ordered) < 4:
        return boots_N
    gaps = np.diff(np.log(ordered))
    cut = int(gaps.argmax()) + 1
    fast, slow = ordered[:cut], ordered[cut:]
    return slow if np.median(slow) > _APART * np.median(fast) else ordered


def _lognormal(values_N: np.ndarray) -> Lognormal:
    positive = values_N[values_N > 0]
    if not len(positive):
        return Lognormal(median=0.0)
    logs = np.log(positive)
    return Lognormal(median=float(np.exp(np.median(logs))), sigma=float(logs.std()), cap=float(positive.max()))


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return float(np.median(known)) if known else 0.0
