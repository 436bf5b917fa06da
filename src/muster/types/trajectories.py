"""Attempts that ended, and what is made of them: segments, groups, batches."""

from __future__ import annotations

from dataclasses import dataclass

from muster.types.arrays import Bools, Floats, Ints
from muster.types.outcomes import Graded, Outcome
from muster.types.spans import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """An append-only token sequence, exactly as the engine saw and sampled it.

    tokens_T    ids
    sampled_T   True where an engine sampled the token; only these are trained
    logprobs_T  behaviour log-probability after temperature; 0 where not sampled
    versions_T  policy version that sampled it; UNSAMPLED elsewhere
    """

    tokens_T: Ints
    sampled_T: Bools
    logprobs_T: Floats
    versions_T: Ints

    def __post_init__(self) -> None:
        length = len(self.tokens_T)
        assert len(self.sampled_T) == len(self.logprobs_T) == len(self.versions_T) == length
        assert bool(((self.versions_T >= 0) == self.sampled_T).all()), "a version for each sampled token"

    def __len__(self) -> int:
        return len(self.tokens_T)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One exchange, kept for reading and replay. `command` is None when the reply held none."""

    index: int
    reply: str
    command: str | None
    observation: str
    exit_code: int | None = None
    commands: tuple[str, ...] = ()  # as they were run, one after the other; `command` shows them joined
    observations: tuple[str, ...] = ()  # what the model was shown of each
    step: int = 0  # of a task of several steps
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    duration_s: float = 0.0  # of the command


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A point between two turns from which an attempt can be continued: its tokens, and its sandbox as it was then.

    launch: which one reached it. snapshot: id of the frozen sandbox. own_s: what the model has used of its time budget.
    segment and turns: from the beginning of the task, also where `launch` itself continued from an earlier point.
    """

    launch: str
    snapshot: str
    own_s: float
    segment: Segment
    turns: tuple[Turn, ...]

    @property
    def sampled_tokens(self) -> int:
        return int(self.segment.sampled_T.sum())

    @property
    def oldest_version(self) -> int:
        """The oldest policy version among its sampled tokens: a keep point lies after a turn, so there are some."""
        return int(self.segment.versions_T[self.segment.sampled_T].min())


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One attempt at a task, ended.

    Segments are trained; turns are for people and replay; spans say where the time went.
    `snapshots` names the frozen states it went through: the first it was forked from, the last it was graded on.
    """

    id: str
    group_id: str
    task_id: str
    attempt: int  # 0 for the first launch of this sibling; each infrastructure refill adds one
    segments: tuple[Segment, ...]
    turns: tuple[Turn, ...]
    spans: tuple[Span, ...]
    outcome: Outcome
    started: float
    ended: float
    snapshots: tuple[str, ...] = ()

    @property
    def sampled_tokens(self) -> int:
        return int(sum(int(s.sampled_T.sum()) for s in self.segments))

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version among the sampled tokens; None if nothing was sampled."""
        ages = [int(s.versions_T[s.sampled_T].min()) for s in self.segments if s.sampled_T.any()]
        return min(ages) if ages else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyGroup:
    """A complete group whose members were all graded by fact.

    `reused`: ids of members that were sampled, graded and trained for an earlier group, and are used once more.
    """

    id: str
    task_id: str
    submission: int  # order of submission in the run; batch policies reason about it
    members: tuple[Trajectory, ...]
    ready_at: float
    reused: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.fresh, "a ready group has members of its own"
        assert all(isinstance(m.outcome, Graded) for m in self.members), "only graded members"

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(m.outcome.reward for m in self.members if isinstance(m.outcome, Graded))

    @property
    def has_gradient(self) -> bool:
        rewards = self.rewards
        return max(rewards) - min(rewards) > 1e-6

    @property
    def fresh(self) -> tuple[Trajectory, ...]:
        """The members that were sampled for this group: what staleness, bias and counts are about."""
        return tuple(m for m in self.members if m.id not in self.reused)

    @property
    def oldest_version(self) -> int:
        """Of the fresh members' sampled tokens."""
        return min(v for m in self.fresh if (v := m.oldest_version) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Batch for the trainer: complete groups, graded, with gradient."""

    step: int
    groups: tuple[ReadyGroup, ...]
    opened_at: float
    ready_at: float

    @property
    def ttb_s(self) -> float:
        """Time to trainable batch, in seconds."""
        return self.ready_at - self.opened_at
