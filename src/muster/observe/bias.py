"""The bias ledger: does what was trained look like what was dispatched?

Law: pure. Whatever selects by finishing time selects short trajectories, and divergence limits select easy ones, so
the members of every batch are compared with all the work dispatched beside them. A ratio of 1 is no bias.

    batch k   members / work of the submissions from the batch's oldest to its newest group
    the run   all trained / all train work that was graded, or cancelled by us; share trained by decile of length

A batch is compared with its own neighbours, not with the whole run: a policy that learns to be brief would
otherwise look like a scheduler that picks the brief.

What we cancelled counts, or a rule that cancels the long ones would look fair among those it let end. Its length is
only known to be more than it had reached, and is taken to be the mean length of the graded ones that got further (as
Efron 1967 redistributes the censored in the estimate of Kaplan and Meier 1958), or what it had, if none did.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from muster.journal import BatchRow, DropRow, SpanRow, TrajectoryRow
from muster.observe.outcomes import GRADED
from muster.observe.record import Record
from muster.rollout.keeping import kept_tokens, kept_turns
from muster.types import Stage, Verdict

ENDED_WITH_ITS_PROCESS = ("stopped", "interrupted")
"""Drop reasons that choose nothing: such a launch is made again when the run goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Profile of a set of trajectories. Lengths in sampled tokens; None when the set is empty.

    Tool time and solve rate are those of the graded ones.
    """

    count: int
    mean_tokens: float | None
    p90_tokens: float | None
    mean_tool_s: float | None
    solve_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection: `chosen` against `dispatched`. `step` is None for the whole run."""

    step: int | None
    chosen: Profile
    dispatched: Profile

    def ratio(self, name: str) -> float | None:
        """`chosen` over `dispatched` for one field of `Profile`; None when it is undefined."""
        above, below = getattr(self.chosen, name), getattr(self.dispatched, name)
        return above / below if above is not None and below else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bias:
    """Bias ledger. `inclusion`: share trained per decile of length, shortest first; empty below ten trajectories.

    Discarded work: groups and trajectories by reason, and the sampled tokens they had cost. Tokens up to a keep point
    count once, with the attempt that went on from there.
    """

    run: Selection
    batches: tuple[Selection, ...]
    inclusion: tuple[float, ...]
    discarded_groups: Mapping[str, int]
    discarded_trajectories: Mapping[str, int]
    discarded_tokens: int
    sampled_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """A trajectory that was graded, or cancelled by us: then its length is an estimate, and the rest is None."""

    id: str
    group_id: str
    tokens: float
    tool_s: float | None = None
    solved: bool | None = None


def bias(record: Record) -> Bias:
    graded = [t for t in record.trajectories.values() if t.purpose == "train" and t.verdict in GRADED]
    ungraded = [t for t in record.trajectories.values() if t.purpose == "train" and t.verdict not in GRADED]
    drops = [d for d in record.drops.values() if _is_training(record, d.id)]
    twice = sum(kept_tokens(t.evidence) for t in (*graded, *ungraded))  # in the lost attempt's row as well
    work = {w.id: w for w in (*(_graded(t, record.spans) for t in graded), *_cancelled(drops, graded, record))}
    by_submission = _by_submission(record, work.values())
    trained = {member for batch in record.trained for member in batch.members}
    closed = [w for w in work.values() if w.id in trained or _state(record, w.group_id) == "dropped"]
    discarded = [t for t in graded if t.id not in trained and _state(record, t.group_id) == "dropped"]
    return Bias(
        run=Selection(
            step=None,
            chosen=_profile(w for w in work.values() if w.id in trained),
            dispatched=_profile(work.values()),
        ),
        batches=tuple(_batch(b, record, work, by_submission) for b in record.trained),
        inclusion=_inclusion(closed, trained),
        discarded_groups=dict(
            Counter(g.drop_reason or "no reason given" for g in record.groups.values() if g.state == "dropped")
        ),
        discarded_trajectories=dict(Counter(d.reason for d in drops)),
        discarded_tokens=_tokens((*discarded, *ungraded, *drops)) - twice,
        sampled_tokens=_tokens((*graded, *ungraded, *drops)) - twice,
    )


def _tokens(rows: Iterable[TrajectoryRow | DropRow]) -> int:
    return sum(row.sampled_tokens for row in rows)


def _graded(trajectory: TrajectoryRow, spans: Mapping[str, Sequence[SpanRow]]) -> _Work:
    before_s = sum(turn["duration_s"] for turn in trajectory.turns[: kept_turns(trajectory.evidence)])
    return _Work(
        id=trajectory.id,
        group_id=trajectory.group_id,
        tokens=trajectory.sampled_tokens,
        tool_s=before_s + sum(s.end - s.start for s in spans.get(trajectory.id, ()) if s.stage == Stage.TOOL),
        solved=trajectory.verdict == Verdict.SUCCESS,
    )


def _cancelled(drops: Iterable[DropRow], graded: Iterable[TrajectoryRow], record: Record) -> Iterator[_Work]:
    """Work that was given up with its group, at the length that it is taken to have had."""
    lengths_N = np.sort([t.sampled_tokens for t in graded])
    means_N = np.cumsum(lengths_N[::-1])[::-1] / np.arange(len(lengths_N), 0, -1)  # from each one on
    for drop in drops:
        if drop.reason not in ENDED_WITH_ITS_PROCESS:
            reached = drop.sampled_tokens + drop.kept_tokens
            further = int(np.searchsorted(lengths_N, reached, side="right"))
            tokens = float(means_N[further]) if further < len(means_N) else reached
            yield _Work(id=drop.id, group_id=record.launches[drop.id].group_id, tokens=tokens)


def _batch(
    batch: BatchRow, record: Record, work: Mapping[str, _Work], by_submission: Mapping[int, Sequence[_Work]]
) -> Selection:
    submissions = [record.groups[g].submission for g in batch.groups if g in record.groups]
    beside = range(min(submissions), max(submissions) + 1) if submissions else range(0)
    return Selection(
        step=batch.step,
        chosen=_profile(work[m] for m in batch.members if m in work),
        dispatched=_profile(w for s in beside for w in by_submission.get(s, ())),
    )


def _by_submission(record: Record, work: Iterable[_Work]) -> dict[int, list[_Work]]:
    index: dict[int, list[_Work]] = {}
    for w in work:
        if w.group_id in record.groups:
            index.setdefault(record.groups[w.group_id].submission, []).append(w)
    return index


def _profile(work: Iterable[_Work]) -> Profile:
    chosen = list(work)
    if not chosen:
        return Profile(count=0, mean_tokens=None, p90_tokens=None, mean_tool_s=None, solve_rate=None)
    tokens = np.array([w.tokens for w in chosen])
    tool_s = [w.tool_s for w in chosen if w.tool_s is not None]
    solved = [w.solved for w in chosen if w.solved is not None]
    return Profile(
        count=len(chosen),
        mean_tokens=float(tokens.mean()),
        p90_tokens=float(np.quantile(tokens, 0.9)),
        mean_tool_s=float(np.mean(tool_s)) if tool_s else None,
        solve_rate=sum(solved) / len(solved) if solved else None,
    )


def _inclusion(closed: Sequence[_Work], trained: set[str]) -> tuple[float, ...]:
    """Ties in length are cut in the order of ids; ten parts of equal count, give or take one."""
    if len(closed) < 10:
        return ()
    ordered = sorted(closed, key=lambda w: (w.tokens, w.id))
    parts = np.array_split(np.array([w.id in trained for w in ordered]), 10)
    return tuple(float(p.mean()) for p in parts)


def _state(record: Record, group_id: str) -> str | None:
    group = record.groups.get(group_id)
    return group.state if group else None


def _is_training(record: Record, launch_id: str) -> bool:
    launch = record.launches.get(launch_id)
    return launch is not None and launch.purpose == "train"
