"""Counts that must add up: outcomes by verdict and cause, and the fate of every launch and trajectory.

Law: pure; nothing dispatched disappears.

    launched = ended + dropped + unfinished                      (per purpose; `difference` must be 0)
    graded   = trained + kept + dropped with a reason + lost     (train; `lost` must be 0)

`unfinished` launches are live in a run that goes on, and interrupted in one that was killed: the journal cannot
tell these apart, and resume launches their siblings again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from muster.journal import GroupRow, Journal, Purpose, TrajectoryRow
from muster.observe.record import Record, read
from muster.rollout.keeping import kept_turns
from muster.types import Cause, Verdict

GRADED = (Verdict.SUCCESS, Verdict.FAILURE)
FLAGGED = (Cause.TAMPERED, Cause.SANDBOX_DESTROYED_BY_AGENT, Cause.VERIFIER_BROKEN_BY_AGENT)
"""Graded by other evidence than the verifier's reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """One purpose's launches. `causes` counts ended trajectories by (verdict, cause).

    `continued`: those of them that went on from the keep point of one that was lost.
    """

    purpose: Purpose
    launched: int
    causes: Mapping[tuple[Verdict, str], int]
    dropped: Mapping[str, int]  # reason -> count
    unfinished: int
    continued: int = 0

    @property
    def ended(self) -> int:
        return sum(self.causes.values())

    @property
    def difference(self) -> int:
        """Launches that nothing accounts for. Not 0: a bug."""
        return self.launched - self.ended - sum(self.dropped.values()) - self.unfinished

    def count(self, *verdicts: Verdict) -> int:
        return sum(n for (verdict, _), n in self.causes.items() if verdict in verdicts)

    def share(self, verdict: Verdict) -> float:
        """Share of ended trajectories with this verdict; 0 when none ended."""
        return self.count(verdict) / self.ended if self.ended else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Groups of the run by what became of them; `dropped` counts by reason."""

    admitted: int
    trained: int
    waiting: int  # open, or ready for a later batch
    dropped: Mapping[str, int]
    complete: int  # ended with a full set of grades: trained, ready, or without gradient
    without_gradient: int  # all members had the same reward
    unsolved: int  # of these, groups in which no member succeeded

    @property
    def no_gradient_share(self) -> float:
        return self.without_gradient / self.complete if self.complete else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounting:
    """The fate of every graded training trajectory, and what must never happen (ids, for looking them up)."""

    launches: int
    graded: int
    ungraded: int
    trained: int
    kept: int  # in a group that is open or ready, or in a batch that waits for the trainer
    dropped: int  # with its group, for a reason
    lost: tuple[str, ...]
    reused: int  # times that a verified success was trained once more, in a group that had none
    trained_twice: tuple[str, ...]  # otherwise
    launched_twice: tuple[str, ...]  # two trajectories for one launch, or one both ended and dropped
    never_launched: tuple[str, ...]  # a trajectory without a launch
    unfinished: int

    @property
    def clean(self) -> bool:
        return not (self.lost or self.trained_twice or self.launched_twice or self.never_launched)


def outcomes(record: Record, purpose: Purpose) -> Outcomes:
    launched = {x.id for x in record.launches.values() if x.purpose == purpose}
    ended = [t for t in record.trajectories.values() if t.purpose == purpose]
    dropped = [d for d in record.drops.values() if d.id in launched]
    known = {t.id for t in ended} | {d.id for d in dropped}
    return Outcomes(
        purpose=purpose,
        launched=len(launched),
        causes=dict(Counter((Verdict(t.verdict), t.cause) for t in ended)),
        dropped=dict(Counter(d.reason for d in dropped)),
        unfinished=len(launched - known),
        continued=sum(kept_turns(t.evidence) > 0 for t in ended),
    )


def group_counts(record: Record) -> Groups:
    """Training groups; evaluation keeps none."""
    groups = record.groups.values()
    dropped = dict(Counter(g.drop_reason or "no reason given" for g in groups if g.state == "dropped"))
    trained = sum(g.state == "trained" for g in groups)
    ready = sum(g.state == "ready" for g in groups)
    without = dropped.get("no_gradient", 0)
    solved = {t.group_id for t in record.trajectories.values() if t.verdict == Verdict.SUCCESS}
    late = sum(g.state == "dropped" and g.ready_at is not None for g in groups)
    return Groups(
        admitted=len(record.groups),
        trained=trained,
        waiting=ready + sum(g.state == "open" for g in groups),
        dropped=dropped,
        complete=trained + ready + late + without,
        without_gradient=without,
        unsolved=sum(g.drop_reason == "no_gradient" and g.id not in solved for g in groups),
    )


def accounting(journal: Journal) -> Accounting:
    """Account of every trajectory: run it after a kill and a resume; `clean` must hold."""
    return account(read(journal))


def account(record: Record) -> Accounting:
    train = [t for t in record.trajectories.values() if t.purpose == "train"]
    graded = [t for t in train if t.verdict in GRADED]
    uses = Counter(member for batch in record.trained for member in batch.members)
    fates = {t.id: _fate(t, record.groups.get(t.group_id), uses) for t in graded}
    counts = Counter(fates.values())
    slots = Counter((t.purpose, t.group_id, t.sibling, t.attempt) for t in record.trajectories.values())
    doubled = {s for s, n in slots.items() if n > 1}
    both = record.trajectories.keys() & record.drops.keys()
    twice = {
        t.id
        for t in record.trajectories.values()
        if t.id in both or (t.purpose, t.group_id, t.sibling, t.attempt) in doubled
    }
    train_launches = [x.id for x in record.launches.values() if x.purpose == "train"]
    known = record.trajectories.keys() | record.drops.keys()
    return Accounting(
        launches=len(train_launches),
        graded=len(graded),
        ungraded=len(train) - len(graded),
        trained=counts["trained"],
        kept=counts["kept"],
        dropped=counts["dropped"],
        lost=tuple(sorted(id for id, fate in fates.items() if fate == "lost")),
        reused=sum(len(batch.reused) for batch in record.trained),
        trained_twice=tuple(sorted(id for id, n in uses.items() if n > 1)),
        launched_twice=tuple(sorted(twice)),
        never_launched=tuple(sorted(record.trajectories.keys() - record.launches.keys())),
        unfinished=sum(id not in known for id in train_launches),
    )


def _fate(trajectory: TrajectoryRow, group: GroupRow | None, uses: Mapping[str, int]) -> str:
    if uses.get(trajectory.id):
        return "trained"
    if group is None or group.state == "trained":
        return "lost"
    if group.state == "dropped":
        return "dropped" if group.drop_reason else "lost"
    return "kept"
