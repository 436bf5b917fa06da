"""The state of a generated service: one SQLite file, made from a seed, changed by whole requests.

    seed.json ─create─► service.db ◄─ changing(): BEGIN … COMMIT ─► only then the answer leaves

Law: the changes of a request are in the file, all of them, before its answer is sent, or none is. A snapshot kills
this process at any moment but never the kernel, so a rollback journal without fsync keeps that law.

Every change of a row is noted in `changes` by triggers, with the number of the open request. A change without one did
not come from the service. That is a tripwire and no lock: the lock is that the service runs as root, in a directory
of mode 0700, and the agent as an ordinary user.

This module travels into the image of a task: standard library only, nothing slow to import.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]
"""Column -> text, whole number or None."""

BOOKKEEPING = ("settings", "sessions", "requests", "changes", "answers", "jobs", "edits")
"""Tables of the service itself, which no task is about: neither watched nor compared."""

_BOOKKEEPING = """
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE sessions (token TEXT PRIMARY KEY, csrf TEXT NOT NULL DEFAULT '', user_id INTEGER, uses INTEGER DEFAULT 0);
CREATE TABLE requests (id INTEGER PRIMARY KEY, method TEXT NOT NULL, target TEXT NOT NULL, open INTEGER NOT NULL);
CREATE TABLE changes (request INTEGER NOT NULL, place TEXT NOT NULL, row INTEGER NOT NULL, action TEXT NOT NULL);
"""
_TRIGGER = """
CREATE TRIGGER {table}_{action} AFTER {action} ON {table} BEGIN
    INSERT INTO changes VALUES
        ((SELECT coalesce(max(id), 0) FROM requests WHERE open), '{table}', {side}.rowid, '{action}');
END;
"""


class Store:
    """One connection, used by one request at a time.

    Example:
        with store.changing("POST", "/cart"):
            store.run("UPDATE carts SET quantity = ? WHERE user_id = ?", 2, 7)
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("PRAGMA foreign_keys = ON")
        self.lock = threading.RLock()

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def changing(self, method: str, target: str) -> Generator[None]:
        """All changes of one request. An exception takes every one of them back."""
        with self.lock:
            self.run("BEGIN IMMEDIATE")
            try:
                number = self.run("INSERT INTO requests (method, target, open) VALUES (?, ?, 1)", method, target)
                yield
                self.run("UPDATE requests SET open = 0 WHERE id = ?", number)
                self.run("COMMIT")
            except BaseException:
                self.run("ROLLBACK")
                raise

    def run(self, sql: str, *values: object) -> int:
        """Returns the number of the row that an INSERT made."""
        return self._connection.execute(sql, values).lastrowid or 0

    def all(self, sql: str, *values: object) -> list[Row]:
        with self.lock:
            return [dict(row) for row in self._connection.execute(sql, values)]

    def one(self, sql: str, *values: object) -> Row | None:
        return next(iter(self.all(sql, *values)), None)

    def value(self, sql: str, *values: object) -> Any:
        """The first column of the first row; None if there is no row."""
        row = self.one(sql, *values)
        return next(iter(row.values())) if row else None

    def setting(self, key: str) -> str:
        return str(self.value("SELECT value FROM settings WHERE key = ?", key))


def create(path: Path, schema: str, seed: Path) -> None:
    """Make the database from the rows of `seed`, whole or not at all; one that exists is kept."""
    if path.exists():
        return
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    connection = sqlite3.connect(part)
    connection.execute("PRAGMA synchronous = OFF")
    fill(connection, schema, json.loads(seed.read_text("utf-8")))
    connection.close()
    part.rename(path)


def fill(connection: sqlite3.Connection, schema: str, rows: Mapping[str, list[Row]]) -> None:
    """Make the tables and their rows, and from then on watch them."""
    connection.executescript(f"BEGIN; {_BOOKKEEPING} {schema} COMMIT;")
    for table, content in rows.items():
        for row in content:
            columns, holes = ", ".join(row), ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({holes})", list(row.values()))
    connection.commit()
    connection.executescript(f"BEGIN; {''.join(_triggers(connection))} COMMIT;")


def _triggers(connection: sqlite3.Connection) -> Iterator[str]:
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        if table in BOOKKEEPING or table.startswith("sqlite_"):
            continue
        for action, side in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
            yield _TRIGGER.format(table=table, action=action, side=side)


def digest(*parts: object) -> str:
    """A token nobody guesses, the same in every replay: 24 hex digits of all `parts`, one of which is a secret."""
    return hashlib.sha256("\0".join(str(part) for part in parts).encode()).hexdigest()[:24]
