"""The journal's tables: one frozen class each, its fields the columns.

Law: a row explains itself; times are seconds on `clock.now()`. What is too rich for columns is kept whole as JSON or,
for tokens, as a packed blob. A field that was renamed keeps its column (`metadata["column"]`), so that journals of
before are read, and read those of now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from muster.errors import JournalError
from muster.journal.codec import unpack_segments
from muster.types import (
    Cause,
    DeviceState,
    Graded,
    Kept,
    Outcome,
    Span,
    Stage,
    Trajectory,
    Turn,
    Ungraded,
    Verdict,
)

Purpose = Literal["train", "evaluate"]

_REPLAYED = {"column": "replayed"}
"""Of what is called reuse since 0.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One process that drove the run. `ended` and `reason` are None if it was killed."""

    id: int
    started: float
    pid: int
    ended: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group from admission to its end. Written again whenever its state changes."""

    id: str
    task_id: str
    submission: int
    version: int  # published when it was admitted
    admitted_at: float
    state: Literal["open", "ready", "trained", "dropped"] = "open"
    replaces: str | None = None  # the group without gradient (or too stale) in whose place it was admitted
    ready_at: float | None = None  # complete, and with gradient
    closed_at: float | None = None  # trained or dropped
    step: int | None = None  # the batch that took it
    drop_reason: str | None = None
    reused: list[str] = field(
        default_factory=list[str], metadata=_REPLAYED
    )  # earlier successes that it was given, having none


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRow:
    """A trajectory was dispatched."""

    id: str
    group_id: str
    task_id: str
    sibling: int
    attempt: int
    at: float
    purpose: Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRow:
    """A launch that ended without an outcome: cancelled by us, with the reason."""

    id: str
    reason: str
    at: float
    sampled_tokens: int = 0  # for this launch
    kept_tokens: int = 0  # that it had taken over from a keep point


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRow:
    """Keep point that a lost sibling goes on from: the last one of its attempts. Gone once it has ended.

    task_digest: of the task as it was. own_s: of the model's time budget, in seconds.
    own_tokens: sampled by `launch` itself up to there, without those of a point that it continued from.
    previous: the snapshot that this one replaces, given back once this row is committed.
    lost: attempts that went on from here and were lost before their next keep point.
    """

    group_id: str
    sibling: int
    launch: str
    at: float
    snapshot: str
    task_digest: str
    own_s: float
    own_tokens: int
    turns: list[dict[str, Any]]
    segment: bytes
    previous: str | None = None
    lost: int = 0

    def kept(self) -> Kept:
        (segment,) = unpack_segments(self.segment)
        turns = tuple(_turn(t) for t in self.turns)
        return Kept(launch=self.launch, snapshot=self.snapshot, own_s=self.own_s, segment=segment, turns=turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRow:
    """An ended trajectory. `trajectory()` gives it back whole; the columns are for counting."""

    id: str
    group_id: str
    task_id: str
    purpose: Purpose
    sibling: int
    attempt: int
    started: float
    ended: float
    verdict: str
    cause: str
    reward: float | None
    evidence: dict[str, Any]
    oldest_version: int | None
    newest_version: int | None
    sampled_tokens: int
    prompt_tokens: int
    cached_tokens: int
    turns: list[dict[str, Any]]
    snapshots: list[str]
    segments: bytes

    @property
    def outcome(self) -> Outcome:
        verdict = Verdict(self.verdict)
        if verdict is Verdict.SUCCESS or verdict is Verdict.FAILURE:
            if self.reward is None:
                raise JournalError(f"trajectory {self.id} is {verdict} without a reward")
            return Graded(verdict=verdict, reward=self.reward, cause=Cause(self.cause), evidence=self.evidence)
        return Ungraded(verdict=verdict, cause=Cause(self.cause), evidence=self.evidence)

    def trajectory(self, spans: Iterable[Span] = ()) -> Trajectory:
        return Trajectory(
            id=self.id,
            group_id=self.group_id,
            task_id=self.task_id,
            attempt=self.attempt,
            segments=unpack_segments(self.segments),
            turns=tuple(_turn(t) for t in self.turns),
            spans=tuple(spans),
            outcome=self.outcome,
            started=self.started,
            ended=self.ended,
            snapshots=tuple(self.snapshots),
        )


def _turn(columns: Mapping[str, Any]) -> Turn:
    """JSON knows no tuples, and runs of before had no such columns."""
    sequences = {name: tuple(columns.get(name, ())) for name in ("commands", "observations")}
    whole: dict[str, Any] = {**columns, **sequences}
    return Turn(**whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow:
    """A trajectory was in `stage` during [start, end)."""

    owner: str
    stage: str
    start: float
    end: float

    def span(self) -> Span:
        return Span(owner=self.owner, stage=Stage(self.stage), start=self.start, end=self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """A device was in `state` during [start, end). Engines report `idle`; the ledger splits it."""

    device: str
    state: str
    start: float
    end: float

    def span(self) -> Span:
        return Span(owner=self.device, stage=DeviceState(self.state), start=self.start, end=self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """Batch `step` was opened, was ready, and consists of these groups, in this order.

    `trainer_free_at`: when the trainer began to wait for it.
    """

    step: int
    opened_at: float
    ready_at: float
    trainer_free_at: float
    version: int  # published when it became ready
    groups: list[str]
    members: list[str]  # trajectory ids that train, sampled for these groups
    reused: list[str] = field(
        default_factory=list[str], metadata=_REPLAYED
    )  # verified successes of earlier groups that train again


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """The optimiser step over batch `step` ended; it made version `step + 1`."""

    step: int
    started: float
    ended: float
    metrics: dict[str, float]
    divergence: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    name: str
    step: int
    at: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """Something worth telling that no other table holds: alarms, resumes, quarantines."""

    at: float
    kind: str
    message: str
    data: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """The trainer's state before batch `step`, in `path` (relative to the run directory)."""

    step: int
    path: str
    at: float
