"""The journal: one SQLite file (WAL) that holds everything a run did.

Law: a fact is committed here before anything counts it. Reports, resume and replay read nothing else. One
process writes; any number may read while it does. A table is a frozen row class; columns are its fields.

    launch ─► trajectory | drop          every launch ends in exactly one of the two
    group  ─► batch ─► step ─► publication
    span (trajectories), device (devices), metric, event, evaluation, checkpoint, session, meta

Times are seconds on `clock.now()`.
"""

from __future__ import annotations

import json
import sqlite3
import types as pytypes
import typing
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import numpy as np

from muster.errors import JournalError, UserError
from muster.types import (
    Cause,
    DeviceState,
    Evaluation,
    Graded,
    Outcome,
    PublicationRecord,
    Segment,
    Span,
    Stage,
    Trajectory,
    Turn,
    Ungraded,
    Verdict,
    Version,
)

SCHEMA_VERSION = 1
Purpose = Literal["train", "evaluate"]


# --- rows ---------------------------------------------------------------------------------------------


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
    sampled_tokens: int = 0


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
            segments=_unpack(self.segments),
            turns=tuple(Turn(**t) for t in self.turns),
            spans=tuple(spans),
            outcome=self.outcome,
            started=self.started,
            ended=self.ended,
            snapshots=tuple(self.snapshots),
        )


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
    members: list[str]  # trajectory ids that train


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Json:
    """A whole record kept as JSON under a number."""

    number: int
    name: str
    data: dict[str, Any]


_TABLES: dict[type[Any], tuple[str, str]] = {  # row class -> (table, primary key)
    SessionRow: ("session", "id"),
    GroupRow: ("grp", "id"),
    LaunchRow: ("launch", "id"),
    DropRow: ("dropped", "id"),
    TrajectoryRow: ("trajectory", "id"),
    SpanRow: ("span", "owner, start, stage"),
    DeviceRow: ("device", "device, start, state"),
    BatchRow: ("batch", "step"),
    StepRow: ("step", "step"),
    MetricRow: ("metric", "name, step, at"),
    EventRow: ("event", "at, kind, message"),
    CheckpointRow: ("checkpoint", "step"),
}
_JSON_TABLES = {"publication": PublicationRecord, "evaluation": Evaluation}

Row = TypeVar("Row")


# --- the journal --------------------------------------------------------------------------------------


class Journal:
    """Example:

    >>> with Journal.create(path, meta={"run": "demo"}) as journal:  # doctest: +SKIP
    ...     journal.record(LaunchRow(...))
    ...     journal.rows(LaunchRow)
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._db = connection
        self.path = path
        self._depth = 0

    @classmethod
    def create(cls, path: Path, *, meta: Mapping[str, Any]) -> Journal:
        """Start a new journal. Raises `UserError` if the file exists."""
        if path.exists():
            raise UserError(f"{path} exists already; resume that run or choose another directory")
        path.parent.mkdir(parents=True, exist_ok=True)
        journal = cls(_connect(path, "rwc"), path)
        with journal.transaction():
            for row, (table, key) in _TABLES.items():
                columns = ", ".join(f'"{f.name}"' for f in fields(row))
                journal._db.execute(f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({key})) WITHOUT ROWID")
            for table in (*_JSON_TABLES, "meta"):
                journal._db.execute(f"CREATE TABLE {table} (number, name, data, PRIMARY KEY (number, name))")
            journal._db.execute("CREATE INDEX launch_group ON launch (group_id)")
            journal._db.execute("CREATE INDEX trajectory_group ON trajectory (group_id)")
            for name, value in {**meta, "schema": SCHEMA_VERSION}.items():
                journal.set_meta(name, value)
        return journal

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> Journal:
        """Open an existing journal; read-only unless `write`."""
        if not path.exists():
            raise UserError(f"{path}: no journal there; is it the directory of a run?")
        try:
            journal = cls(_connect(path, "rw" if write else "ro"), path)
            schema = journal.meta().get("schema")
        except sqlite3.DatabaseError as error:
            raise JournalError(f"{path}: not a journal that can be read ({error})") from error
        if schema != SCHEMA_VERSION:
            raise JournalError(f"{path}: schema {schema}, this Muster reads {SCHEMA_VERSION}")
        return journal

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All records inside are committed together or not at all. Nests: only the outermost commits."""
        if self._depth == 0:
            self._db.execute("BEGIN IMMEDIATE")
        self._depth += 1
        try:
            yield
        except BaseException:
            self._depth -= 1
            if self._depth == 0:
                self._db.execute("ROLLBACK")
            raise
        self._depth -= 1
        if self._depth == 0:
            self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # writing

    def record(self, *rows: Any) -> None:
        """Write rows, together. A row with the key of an earlier one replaces it."""
        with self.transaction():
            for row in rows:
                table, _ = _TABLES[type(row)]
                values = [_encode(getattr(row, f.name)) for f in fields(row)]
                marks = ", ".join("?" * len(values))
                self._db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", values)

    def record_trajectory(self, trajectory: Trajectory, *, sibling: int, purpose: Purpose) -> None:
        """Commit a trajectory with its spans; afterwards it may be counted."""
        sampled = [s.versions_T[s.sampled_T] for s in trajectory.segments]
        versions = np.concatenate(sampled) if sampled else np.zeros(0, np.int32)
        outcome = trajectory.outcome
        row = TrajectoryRow(
            id=trajectory.id,
            group_id=trajectory.group_id,
            task_id=trajectory.task_id,
            purpose=purpose,
            sibling=sibling,
            attempt=trajectory.attempt,
            started=trajectory.started,
            ended=trajectory.ended,
            verdict=outcome.verdict,
            cause=outcome.cause,
            reward=outcome.reward if isinstance(outcome, Graded) else None,
            evidence=dict(outcome.evidence),
            oldest_version=int(versions.min()) if len(versions) else None,
            newest_version=int(versions.max()) if len(versions) else None,
            sampled_tokens=trajectory.sampled_tokens,
            prompt_tokens=sum(t.prompt_tokens for t in trajectory.turns),
            cached_tokens=sum(t.cached_tokens for t in trajectory.turns),
            turns=[asdict(t) for t in trajectory.turns],
            snapshots=list(trajectory.snapshots),
            segments=_pack(trajectory.segments),
        )
        spans = (SpanRow(owner=s.owner, stage=str(s.stage), start=s.start, end=s.end) for s in trajectory.spans)
        self.record(row, *spans)

    def record_publication(self, publication: PublicationRecord) -> None:
        self._record_json("publication", publication.version.number, publication.replica, publication)

    def record_evaluation(self, evaluation: Evaluation) -> None:
        name = f"{evaluation.step}@{evaluation.started:.6f}"
        self._record_json("evaluation", evaluation.step, name, evaluation)

    def set_meta(self, name: str, value: Any) -> None:
        with self.transaction():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (0, ?, ?)", (name, json.dumps(value)))

    def _record_json(self, table: str, number: int, name: str, record: Any) -> None:
        with self.transaction():
            self._db.execute(
                f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)",
                (number, name, json.dumps(asdict(record))),
            )

    # reading

    def rows(self, row: type[Row], where: str = "", *values: Any) -> list[Row]:
        """Rows in key order. `where` is SQL over the row's fields with `?` marks, e.g. `"step >= ?", 3`."""
        table, key = _TABLES[row]
        names = ", ".join(f'"{f.name}"' for f in fields(row))  # type: ignore[arg-type]
        clause = f"WHERE {where}" if where else ""
        cursor = self._db.execute(f"SELECT {names} FROM {table} {clause} ORDER BY {key}", values)
        decoders = _decoders(row)
        return [row(**{name: decode(v) for (name, decode), v in zip(decoders, r, strict=True)}) for r in cursor]

    def count(self, row: type[Any], where: str = "", *values: Any) -> int:
        clause = f"WHERE {where}" if where else ""
        return int(self._db.execute(f"SELECT COUNT(*) FROM {_TABLES[row][0]} {clause}", values).fetchone()[0])

    def meta(self) -> dict[str, Any]:
        return {name: json.loads(data) for name, data in self._db.execute("SELECT name, data FROM meta")}

    def trajectory(self, id: str) -> Trajectory:
        """One trajectory with its spans. Raises `UserError` for an unknown id."""
        rows = self.rows(TrajectoryRow, "id = ?", id)
        if not rows:
            raise UserError(f"{self.path}: no trajectory {id!r} (an id looks like g000012.3)")
        spans = self.rows(SpanRow, "owner = ?", id)
        return rows[0].trajectory(s.span() for s in spans)

    def publications(self) -> list[PublicationRecord]:
        return [PublicationRecord(**{**d, "version": Version(**d["version"])}) for d in self._json("publication")]

    def evaluations(self) -> list[Evaluation]:
        """In the order they were taken."""
        records = [
            Evaluation(
                **{
                    **d,
                    "version": Version(**d["version"]),
                    "by_family": {k: tuple(v) for k, v in d["by_family"].items()},
                }
            )
            for d in self._json("evaluation")
        ]
        return sorted(records, key=lambda e: e.started)

    def _json(self, table: str) -> list[dict[str, Any]]:
        cursor = self._db.execute(f"SELECT data FROM {table} ORDER BY number, name")
        return [json.loads(data) for (data,) in cursor]


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10.0)
    if mode != "ro":
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")  # a killed process loses nothing; a power cut the last moments
    return db


# --- encoding -----------------------------------------------------------------------------------------


def _encode(value: Any) -> Any:
    if isinstance(value, dict | list | tuple):
        return json.dumps(value)
    return value


def _decoders(row: type[Any]) -> list[tuple[str, Any]]:
    """(field name, decode) for each field: JSON for containers, as it is for the rest."""
    hints = typing.get_type_hints(row)
    return [(f.name, json.loads if _is_container(hints[f.name]) else _identity) for f in fields(row)]


def _is_container(hint: Any) -> bool:
    if get_origin(hint) in (typing.Union, pytypes.UnionType):
        return any(_is_container(a) for a in get_args(hint))
    return get_origin(hint) in (dict, list, tuple)


def _identity(value: Any) -> Any:
    return value


def _pack(segments: tuple[Segment, ...]) -> bytes:
    """[count, lengths…] as int32, then tokens, logprobs, versions of each; sampled is versions >= 0."""
    header = np.array([len(segments), *(len(s) for s in segments)], np.int32)
    parts = [header.tobytes()]
    for s in segments:
        parts += [
            s.tokens_T.astype(np.int32).tobytes(),
            s.logprobs_T.astype(np.float32).tobytes(),
            s.versions_T.astype(np.int32).tobytes(),
        ]
    return zlib.compress(b"".join(parts), 1)


def _unpack(blob: bytes) -> tuple[Segment, ...]:
    data = zlib.decompress(blob)
    count = int(np.frombuffer(data, np.int32, 1)[0])
    lengths = np.frombuffer(data, np.int32, count, offset=4)
    offset = 4 * (1 + count)
    segments: list[Segment] = []
    for length in (int(n) for n in lengths):
        tokens = np.frombuffer(data, np.int32, length, offset=offset)
        logprobs = np.frombuffer(data, np.float32, length, offset=offset + 4 * length)
        versions = np.frombuffer(data, np.int32, length, offset=offset + 8 * length)
        offset += 12 * length
        segments.append(Segment(tokens_T=tokens, sampled_T=versions >= 0, logprobs_T=logprobs, versions_T=versions))
    return tuple(segments)
