"""From a run's journal to what was measured of it: programs, engine, sandboxes, trainer, publications.

    journal ─► latest batches ─► their groups ─► programs, boots, losses ──┐
           └─► every request ─► engine timing      steps, publications ────┴─► Fitted

Law: pure over rows. Medians stand for what happens once a step. What a journal does not tell stays at the simulation's
defaults. A long run is represented by its latest batches: an older policy did other work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from muster.engine.config import EmulatedEngineConfig
from muster.errors import UserError
from muster.journal import BatchRow, DeviceRow, GroupRow, Journal, SpanRow, StepRow, TrajectoryRow
from muster.lab.collection.collection import TrainingWorld
from muster.lab.collection.programs import Mishaps
from muster.lab.collection.timed_sandbox import SandboxTimes
from muster.lab.collection.workload import Lognormal
from muster.lab.plan.fit.engine import fit_timing, visits_of
from muster.lab.plan.fit.programs import (
    SandboxSeconds,
    common_tokens,
    graded_groups,
    infrastructure_losses,
    program_of,
    sandbox_seconds,
)
from muster.lab.plan.fit.sharing import TRAINER, Shares, shares
from muster.lab.plan.fit.world import Fitted, MeasuredBatches, Setup
from muster.observe.bounds.fit import by_owner
from muster.types import DeviceState, PublicationRecord

RECENT = 8
"""Batches of a long run that are fitted, the latest."""
SETTLED = 3
"""Batches after which a run goes on as it will: the first waits for no trainer, the next ones for little."""
_APART = 4.0
"""Factor between the medians of two kinds of starts that makes them two kinds: forks kept warm, and boots."""
_FEW = 8
"""Groups below which draws of them say little about other work."""


Array = npt.NDArray[np.float64]


def fit_run(
    journal: Journal, setup: Setup, *, engine: EmulatedEngineConfig | None = None, shared_cores: bool = False
) -> Fitted:
    """Fit the latest batches of a run.

    engine: take this server instead of fitting one. shared_cores: engines and trainer were processes of one machine;
    what they slowed each other down is taken out (`sharing`). Raises `UserError` when the run is too short.
    """
    batches, skipped = _recent(journal.rows(BatchRow))
    order = _order(journal.rows(GroupRow), batches)
    rows = journal.rows(TrajectoryRow)
    spans = by_owner(journal.rows(SpanRow))
    chosen = set(order)
    own = [t for t in rows if t.purpose == "train" and t.group_id in chosen]
    groups = graded_groups(own, order)
    if not groups:
        raise UserError("the run has no complete group yet: there is nothing to plan with")
    seconds = [sandbox_seconds(spans.get(t.id, ())) for t in own]
    times = sandbox_times(seconds, warm=setup.sandbox.warm)
    shared = common_tokens(groups)
    boot_s = times.boot_s.median
    programs = tuple(
        tuple(program_of(t, spans.get(t.id, ()), verifier_boot_s=boot_s, common_tokens=shared) for t in members)
        for members in groups
    )
    stage_s = _median(p.stage_s for p in _published(journal))
    pause_s = _median(p.pause_s for p in _published(journal))
    sampled = {t.id: t.sampled_tokens for t in own}
    start, end = batches[0].opened_at, batches[-1].ready_at
    alone = shares(journal.rows(DeviceRow), start, end) if shared_cores else Shares()
    meanwhile = (t for t in rows if t.ended > start and t.started < end)
    visits = [v for t in meanwhile for v in visits_of(t, spans.get(t.id, ()))]
    return Fitted(
        groups=programs,
        measured=_measured(batches, skipped),
        engine=engine or fit_timing(visits, setup.limits, replicas=setup.replicas).faster(alone.engine),
        times=times,
        training=_faster(training_times(journal, batches, sampled, stage_s + pause_s), alone.trainer),
        stage_s=stage_s,
        pause_s=pause_s,
        mishaps=Mishaps(**infrastructure_losses(own)),
        alone=alone,
        notes=_notes(groups, journal.count(GroupRow), engine),
    )


def measured(journal: Journal) -> MeasuredBatches:
    """Of a run, as far as `fit_run` would look. Raises `UserError` when it has no batch."""
    return _measured(*_recent(journal.rows(BatchRow)))


def _measured(batches: Sequence[BatchRow], skipped: int) -> MeasuredBatches:
    return MeasuredBatches(
        skipped=skipped,
        ttb_s=tuple(b.ready_at - b.opened_at for b in batches),
        trainer_wait_s=tuple(max(0.0, b.ready_at - b.trainer_free_at) for b in batches),
    )


def sandbox_times(seconds: Sequence[SandboxSeconds], *, warm: int) -> SandboxTimes:
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
) -> TrainingWorld:
    """Seconds of a step, an export, an evaluation and a checkpoint; and how far a step moves the policy.

    published_s: of a publication, what the engines account for; the rest of its latency is the trainer's.
    """
    members = {b.step: sum(sampled.get(m, 0) for m in b.members) for b in batches}
    own = [s for s in journal.rows(StepRow) if members.get(s.step)]
    step_s, token_s = _step_times(own, members)
    drift_m2 = _median(s.metrics["drift_m2"] for s in own if "drift_m2" in s.metrics)
    evaluations = journal.evaluations()
    later = [e for e in evaluations if e.step > 0] or evaluations
    latency_s = _median(p.latency_s for p in _published(journal))
    return TrainingWorld(
        step_s=step_s,
        token_s=token_s,
        drift_m2=drift_m2,
        export_s=max(0.0, latency_s - published_s),
        evaluate_s=_median(e.ended - e.started for e in later),
        checkpoint_s=_checkpoint_s(journal.rows(DeviceRow, "device = ?", TRAINER)),
    )


def _faster(training: TrainingWorld, factor: float) -> TrainingWorld:
    """Training in which what the trainer does itself takes `factor` of the time."""
    own = ("step_s", "token_s", "export_s", "checkpoint_s")
    return training.model_copy(update={name: getattr(training, name) * factor for name in own})


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


def _recent(batches: Sequence[BatchRow]) -> tuple[Sequence[BatchRow], int]:
    """The batches to fit, and how many a simulation makes before it reaches the like of the first of them."""
    if not batches:
        raise UserError("no batch of this run has become ready yet: there is nothing to plan with")
    if len(batches) <= RECENT:
        return batches, 0
    return batches[-RECENT:], SETTLED


def _order(groups: Sequence[GroupRow], batches: Sequence[BatchRow]) -> list[str]:
    """Ids of the groups that were admitted for these batches, those dropped included, in order of submission."""
    members = {id for b in batches for id in b.groups}
    known = [g.submission for g in groups if g.id in members]
    first = min(known, default=0)
    return [g.id for g in sorted(groups, key=lambda g: g.submission) if g.submission >= first]


def _notes(groups: Sequence[object], admitted: int, engine: object) -> tuple[str, ...]:
    notes: list[str] = []
    if len(groups) < _FEW:
        notes.append(f"only {len(groups)} complete groups of {admitted} to play: draws of them differ little")
    if engine is not None:
        notes.append("the engine is the one that was named, not fitted to the run")
    return tuple(notes)


def _cold(boots_N: Array) -> Array:
    """The slow kind, where a cut of the logarithms at the widest gap leaves two kinds that are `_APART`."""
    ordered = np.sort(boots_N[boots_N > 0])
    if len(ordered) < 4:
        return boots_N
    gaps = np.diff(np.log(ordered))
    cut = int(gaps.argmax()) + 1
    fast, slow = ordered[:cut], ordered[cut:]
    return slow if np.median(slow) > _APART * np.median(fast) else ordered


def _lognormal(values_N: Array) -> Lognormal:
    positive = values_N[values_N > 0]
    if not len(positive):
        return Lognormal(median=0.0)
    logs = np.log(positive)
    return Lognormal(median=float(np.exp(np.median(logs))), sigma=float(logs.std()), cap=float(positive.max()))


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return float(np.median(known)) if known else 0.0
