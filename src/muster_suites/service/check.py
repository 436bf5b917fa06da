"""Grades what an agent made of a service: the rows of its database, all of them, against the expected ones.

    /srv/…/service.db ─copied, opened apart─► rows of each table ═ expected.json ?  ─► 1 or 0 ─► reward.txt

Law: every table counts, so collateral damage fails; nothing of the agent runs here; whatever cannot be read fails.
The reward is written last. This file is a whole program: it becomes `tests/check.py` of a task.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_EXPECTED = Path("/tests/expected.json")
_REWARD = Path("/logs/verifier/reward.txt")
_LIMIT_BYTES = 32 << 20
_ROWS_LIMIT = 20_000
_SHOWN = 3


def main(expected: Path = _EXPECTED, reward: Path = _REWARD) -> None:
    """Print what is wrong, if anything, and write the reward."""
    problems = ["the check did not end"]
    try:
        problems = list(wrong(json.loads(expected.read_text("utf-8")), reward.parent))
    except (OSError, ValueError, sqlite3.Error) as error:
        problems = [f"the database cannot be read: {error}"]
    finally:
        sys.stdout.writelines(f"{problem}\n" for problem in problems)
        reward.write_text("0\n" if problems else "1\n")


def wrong(expected: dict[str, Any], place: Path) -> Iterator[str]:
    """What differs from `expected`: {database, tables: {name: {columns, rows}}}. Nothing: all is well.

    `place` is a directory for a while. Raises OSError, ValueError or sqlite3.Error for what cannot be read.
    """
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        connection = sqlite3.connect(_copied(Path(expected["database"]), Path(scratch)))
        try:
            if connection.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                yield "the database is damaged"
                return
            for name, table in expected["tables"].items():
                yield from _compared(connection, name, table)
            foreign = connection.execute(
                "SELECT count(*) FROM changes WHERE request NOT IN (SELECT id FROM requests WHERE NOT open)"
            ).fetchone()[0]
            if foreign:
                yield f"{foreign} changes were not made through the service"
        finally:
            connection.close()


def _copied(database: Path, scratch: Path) -> Path:
    """A copy with its journal, from which SQLite takes back what a killed service had half done."""
    for path in database.parents:
        if path.is_symlink():
            raise OSError(f"{path} is a link")
    for path in (database, database.with_name(f"{database.name}-journal")):
        if path == database or os.path.lexists(path):
            _copy(path, scratch / path.name)
    return scratch / database.name


def _copy(source: Path, target: Path) -> None:
    """Neither a link nor a pipe is followed, and no more is read than a database of this kind can have."""
    with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode) or state.st_size > _LIMIT_BYTES:
            raise OSError(f"{source} is not a file of at most {_LIMIT_BYTES} bytes")
        with target.open("wb") as copy:
            shutil.copyfileobj(file, copy)


def _compared(connection: sqlite3.Connection, name: str, table: dict[str, Any]) -> Iterator[str]:
    """Rows as a multiset: their order in the file says nothing."""
    columns = ", ".join(f'"{column}"' for column in table["columns"])
    found = connection.execute(f'SELECT {columns} FROM "{name}" LIMIT {_ROWS_LIMIT}').fetchall()
    have, want = Counter(found), Counter(tuple(row) for row in table["rows"])
    for word, rows in (("unexpected", have - want), ("missing", want - have)):
        shown = [dict(zip(table["columns"], row, strict=True)) for row in list(rows)[:_SHOWN]]
        if shown:
            yield f"{name}: {rows.total()} {word} rows, such as {shown}"


if __name__ == "__main__":
    main()
