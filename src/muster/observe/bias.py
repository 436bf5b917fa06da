"""The bias ledger: does what was trained look like what was dispatched?

Law: pure. Whatever selects by finishing time selects short trajectories, and divergence limits select easy ones, so
the members of every batch are compared with all the work dispatched beside them. A ratio of 1 is no bias.

    batch k   members / graded work of the submissions from the batch's oldest to its newest group
    the run   all trained / all graded train work; share trained by decile of sampled length

A batch is compared with its own neighbours, not with the whole run: a policy that learns to be brief would
otherwise look like a scheduler that picks the brief.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from muster.journal import BatchRow, SpanRow, TrajectoryRow
from muster.observe.outcomes import GRADED
from muster.observe.record import Record
from muster.types import Stage, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a set of trajectories looks like. Lengths in sampled tokens; None when the set is empty."""

    count: int
    mean_tokens: float | None
    p90_tokens: float | None
    mean_tool_s: float | None
    solve_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`chosen` against `dispatched`. `step` is None for the whole run."""

    step: int | None
    chosen: Profile
    dispatched: Profile

    def ratio(self, name: str) -> float | None:
        """`chosen` over `dispatched` for one field of `Profile`; None when it is undefined."""
        above, below = getattr(self.chosen, name), getattr(self.dispatched, name)
        return above / below if above is not None and below else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """`inclusion`: share trained per decile of length, shortest first; empty with fewer than ten trajectories.

    Discarded work: groups and trajectories by reason, and the sampled tokens they had cost.
    """

    run: Comparison
    batches: tuple[Comparison, ...]
    inclusion: tuple[float, ...]
    discarded_groups: Mapping[str, int]
    discarded_trajectories: Mapping[str, int]
    discarded_tokens: int
    sampled_tokens: int


def bias(record: Record) -> Bias:
    graded = [t for t in record.trajectories.values() if t.purpose == "train" and t.verdict in GRADED]
    by_submission = _by_submission(record, graded)
    trained = {member for batch in record.trained for member in batch.members}
    closed = [t for t in graded if t.id in trained or _state(record, t) == "dropped"]
    discarded = [t for t in closed if t.id not in trained]
    drops = [d for d in record.drops.values() if _is_training(record, d.id)]
    ungraded = [t for t in record.trajectories.values() if t.purpose == "train" and t.verdict not in GRADED]
    return Bias(
        run=Comparison(
            step=None,
            chosen=_profile((t for t in graded if t.id in trained), record.spans),
            dispatched=_profile(graded, record.spans),
        ),
        batches=tuple(_batch(b, record, by_submission) for b in record.trained),
        inclusion=_inclusion(closed, trained),
        discarded_groups=dict(
            Counter(g.drop_reason or "no reason given" for g in record.groups.values() if g.state == "dropped")
        ),
        discarded_trajectories=dict(Counter(d.reason for d in drops)),
        discarded_tokens=sum(t.sampled_tokens for t in (*discarded, *ungraded)) + sum(d.sampled_tokens for d in drops),
        sampled_tokens=sum(t.sampled_tokens for t in (*graded, *ungraded)) + sum(d.sampled_tokens for d in drops),
    )


def _batch(batch: BatchRow, record: Record, by_submission: Mapping[int, Sequence[TrajectoryRow]]) -> Comparison:
    submissions = [record.groups[g].submission for g in batch.groups if g in record.groups]
    beside = range(min(submissions), max(submissions) + 1) if submissions else range(0)
    members = (record.trajectories[m] for m in batch.members if m in record.trajectories)
    return Comparison(
        step=batch.step,
        chosen=_profile(members, record.spans),
        dispatched=_profile((t for s in beside for t in by_submission.get(s, ())), record.spans),
    )


def _by_submission(record: Record, graded: Iterable[TrajectoryRow]) -> dict[int, list[TrajectoryRow]]:
    index: dict[int, list[TrajectoryRow]] = {}
    for t in graded:
        if t.group_id in record.groups:
            index.setdefault(record.groups[t.group_id].submission, []).append(t)
    return index


def _profile(trajectories: Iterable[TrajectoryRow], spans: Mapping[str, Sequence[SpanRow]]) -> Profile:
    chosen = list(trajectories)
    if not chosen:
        return Profile(count=0, mean_tokens=None, p90_tokens=None, mean_tool_s=None, solve_rate=None)
    tokens = np.array([t.sampled_tokens for t in chosen])
    tool_s = [sum(s.end - s.start for s in spans.get(t.id, ()) if s.stage == Stage.TOOL) for t in chosen]
    return Profile(
        count=len(chosen),
        mean_tokens=float(tokens.mean()),
        p90_tokens=float(np.quantile(tokens, 0.9)),
        mean_tool_s=float(np.mean(tool_s)),
        solve_rate=sum(t.verdict == Verdict.SUCCESS for t in chosen) / len(chosen),
    )


def _inclusion(closed: Sequence[TrajectoryRow], trained: set[str]) -> tuple[float, ...]:
    """Ties in length are cut in the order of ids; ten parts of equal count, give or take one."""
    if len(closed) < 10:
        return ()
    ordered = sorted(closed, key=lambda t: (t.sampled_tokens, t.id))
    parts = np.array_split(np.array([t.id in trained for t in ordered]), 10)
    return tuple(float(p.mean()) for p in parts)


def _state(record: Record, trajectory: TrajectoryRow) -> str | None:
    group = record.groups.get(trajectory.group_id)
    return group.state if group else None


def _is_training(record: Record, launch_id: str) -> bool:
    launch = record.launches.get(launch_id)
    return launch is not None and launch.purpose == "train"
