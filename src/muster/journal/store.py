"""Writing and reading a run's record. See the package's docstring for its law."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, asdict, fields
from itertools import groupby
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from muster.errors import JournalError, UserError
from muster.journal.codec import decoders, encode, encoder, pack_segments
from muster.journal.rows import (
    BatchRow,
    CheckpointRow,
    DeviceRow,
    DropRow,
    EventRow,
    GroupRow,
    KeepRow,
    LaunchRow,
    MetricRow,
    Purpose,
    SessionRow,
    SpanRow,
    StepRow,
    TrajectoryRow,
)
from muster.types import Evaluation, Graded, Kept, Launch, PublicationRecord, Trajectory, Turn, Version

FILE_NAME = "journal.db"
"""Of the journal in a run's directory."""
SCHEMA_VERSION = 1

_TABLES: dict[type[Any], tuple[str, str]] = {  # row class -> (table, primary key)
    SessionRow: ("session", "id"),
    GroupRow: ("grp", "id"),
    LaunchRow: ("launch", "id"),
    DropRow: ("dropped", "id"),
    KeepRow: ("keep", "group_id, sibling"),
    TrajectoryRow: ("trajectory", "id"),
    SpanRow: ("span", "owner, start, stage"),
    DeviceRow: ("device", "device, start, state"),
    BatchRow: ("batch", "step"),
    StepRow: ("step", "step"),
    MetricRow: ("metric", "name, step, at"),
    EventRow: ("event", "at, kind, message"),
    CheckpointRow: ("checkpoint", "step"),
}
_JSON_TABLES = ("publication", "evaluation")  # whole records, by number and name


def _column(field: Field[Any]) -> str:
    return str(field.metadata.get("column", field.name))


def _columns(row: type[Any]) -> str:
    return ", ".join(f'"{_column(f)}"' for f in fields(row))


_INSERTS: dict[type[Any], str] = {
    row: f"INSERT OR REPLACE INTO {table} ({_columns(row)}) VALUES ({', '.join('?' * len(fields(row)))})"
    for row, (table, _) in _TABLES.items()
}
_TURN = tuple(f.name for f in fields(Turn))

Row = TypeVar("Row")


class Journal:
    """Record of one run, for writing and reading.

    Example:

    >>> with Journal.create(path, meta={"run": "demo"}) as journal:  # doctest: +SKIP
    ...     journal.record(LaunchRow(...))
    ...     journal.rows(LaunchRow)
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._db = connection
        self.path = path
        self._depth = 0
        self._known: dict[type[Any], frozenset[str]] = {}  # columns of the tables that are there

    @classmethod
    def create(cls, path: Path, *, meta: Mapping[str, Any]) -> Journal:
        """Start a new journal. Raises `UserError` if the file exists."""
        if path.exists():
            raise UserError(f"{path} exists already; resume that run or choose another directory")
        path.parent.mkdir(parents=True, exist_ok=True)
        journal = cls(_connect(path, "rwc"), path)
        journal._create_tables(meta)
        return journal

    @classmethod
    def in_memory(cls, *, meta: Mapping[str, Any]) -> Self:
        """A journal without a file, gone with its process; for simulations."""
        journal = cls(sqlite3.connect(":memory:", isolation_level=None), Path(":memory:"))
        journal._create_tables(meta)
        return journal

    def copied(self) -> Self:
        """Copy of what is committed now, in memory and apart from this one."""
        copy = type(self)(sqlite3.connect(":memory:", isolation_level=None), self.path)
        self._db.backup(copy._db)
        return copy

    def to_bytes(self) -> bytes:
        """The whole database. Two runs that did the same in the same order have equal bytes."""
        return self._db.serialize()

    def _create_tables(self, meta: Mapping[str, Any]) -> None:
        with self.transaction():
            self._add_missing()
            for table in (*_JSON_TABLES, "meta"):
                self._db.execute(f"CREATE TABLE {table} (number, name, data, PRIMARY KEY (number, name))")
            self._db.execute("CREATE INDEX launch_group ON launch (group_id)")
            self._db.execute("CREATE INDEX trajectory_group ON trajectory (group_id)")
            for name, value in {**meta, "schema": SCHEMA_VERSION}.items():
                self.set_meta(name, value)

    @classmethod
    def open(cls, path: Path, *, write: bool = False) -> Journal:
        """Open an existing journal; read-only unless `write`.

        What an earlier Muster did not record reads as the default of the row class.
        """
        if not path.exists():
            raise UserError(f"{path}: no journal there; is it the directory of a run?")
        try:
            journal = cls(_connect(path, "rw" if write else "ro"), path)
            schema = journal.meta().get("schema")
        except sqlite3.DatabaseError as error:
            raise JournalError(f"{path}: not a journal that can be read ({error})") from error
        if schema != SCHEMA_VERSION:
            raise JournalError(f"{path}: schema {schema}, this Muster reads {SCHEMA_VERSION}")
        if write:
            with journal.transaction():
                journal._add_missing()
        return journal

    @contextmanager
    def transaction(self) -> Generator[None]:
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

    def _add_missing(self) -> None:
        """Create the tables and columns that are not there: all of a new journal, the later ones of an old one."""
        for row, (table, key) in _TABLES.items():
            present = self._present(row)
            if not present:
                self._db.execute(f"CREATE TABLE {table} ({_columns(row)}, PRIMARY KEY ({key})) WITHOUT ROWID")
                continue
            for field in fields(row):
                if _column(field) not in present:
                    self._db.execute(f'ALTER TABLE {table} ADD COLUMN "{_column(field)}" DEFAULT {_default(field)}')
        self._known.clear()

    def _present(self, row: type[Any]) -> frozenset[str]:
        """The columns of a row's table in this file; none if there is no such table."""
        if row not in self._known:
            columns = self._db.execute(f"PRAGMA table_info({_TABLES[row][0]})")
            self._known[row] = frozenset(name for (_, name, *_) in columns)
        return self._known[row]

    # writing

    def record(self, *rows: Any) -> None:
        """Write rows, together. A row with the key of an earlier one replaces it."""
        with self.transaction():
            for kind, alike in groupby(rows, type):
                self._db.executemany(_INSERTS[kind], map(encoder(kind), alike))

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
            turns=_turns(trajectory.turns),
            snapshots=list(trajectory.snapshots),
            segments=pack_segments(trajectory.segments),
        )
        spans = (SpanRow(owner=s.owner, stage=str(s.stage), start=s.start, end=s.end) for s in trajectory.spans)
        self.record(row, *spans)

    def record_kept(self, launch: Launch, kept: Kept, *, own_tokens: int, previous: str | None, at: float) -> None:
        """Commit where the sibling of `launch` goes on if it is lost, in place of where it would have before."""
        row = KeepRow(
            group_id=launch.group_id,
            sibling=launch.sibling,
            launch=kept.launch,
            at=at,
            snapshot=kept.snapshot,
            task_digest=launch.task.digest,
            own_s=kept.own_s,
            own_tokens=own_tokens,
            turns=_turns(kept.turns),
            segment=pack_segments((kept.segment,)),
            previous=previous,
        )
        self.record(row)

    def forget(self, row: type[Any], where: str, *values: Any) -> None:
        """Delete rows that say what might still be done, once it will not be; `where` as in `rows`."""
        with self.transaction():
            self._db.execute(f"DELETE FROM {_TABLES[row][0]} WHERE {where}", values)

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
        """Rows in key order. `where` is SQL over the row's columns with `?` marks, e.g. `"step >= ?", 3`."""
        present = self._present(row)
        if not present:
            return []
        names = ", ".join(f'"{_column(f)}"' if _column(f) in present else _default(f) for f in fields(row))  # type: ignore[arg-type]
        found = self._selected(names, row, where, values)
        columns = decoders(row)
        return [row(**{name: decode(v) for (name, decode), v in zip(columns, r, strict=True)}) for r in found]

    def count(self, row: type[Any], where: str = "", *values: Any) -> int:
        return sum(number for (number,) in self._selected("COUNT(*)", row, where, values))

    def ids(self, row: type[Any], where: str = "", *values: Any) -> list[str]:
        """The `id` of each row, in key order, without reading the rest of it."""
        return [id for (id,) in self._selected("id", row, where, values)]

    def _selected(self, what: str, row: type[Any], where: str, values: tuple[Any, ...]) -> Iterable[tuple[Any, ...]]:
        """In key order; nothing where there was no such table yet when this journal was made."""
        if not self._present(row):
            return ()
        table, key = _TABLES[row]
        clause = f"WHERE {where}" if where else ""
        return self._db.execute(f"SELECT {what} FROM {table} {clause} ORDER BY {key}", values)

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
        return [_publication(d) for d in self._json("publication")]

    def evaluations(self) -> list[Evaluation]:
        """In the order they were taken."""
        records = [_evaluation(d) for d in self._json("evaluation")]
        return sorted(records, key=lambda e: e.started)

    def _json(self, table: str) -> list[dict[str, Any]]:
        cursor = self._db.execute(f"SELECT data FROM {table} ORDER BY number, name")
        return [json.loads(data) for (data,) in cursor]


def _default(field: Field[Any]) -> str:
    """The SQL literal of what a field reads as in a journal from before there was such a field."""
    made = field.default_factory() if field.default_factory is not MISSING else field.default
    assert made is not MISSING, f"a new column needs a default, or the schema number rises: {field.name}"
    value = encode(made)
    if value is None:
        return "NULL"
    return repr(value) if isinstance(value, int | float) else "'" + str(value).replace("'", "''") + "'"


def _turns(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    return [{name: getattr(turn, name) for name in _TURN} for turn in turns]


def _publication(data: dict[str, Any]) -> PublicationRecord:
    whole: dict[str, Any] = {**data, "version": Version(**data["version"])}
    return PublicationRecord(**whole)


def _evaluation(data: dict[str, Any]) -> Evaluation:
    by_family = {name: tuple(counts) for name, counts in data["by_family"].items()}
    whole: dict[str, Any] = {**data, "version": Version(**data["version"]), "by_family": by_family}
    return Evaluation(**whole)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10.0)
    if mode != "ro":
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")  # a killed process loses nothing; a power cut the last moments
    return db
