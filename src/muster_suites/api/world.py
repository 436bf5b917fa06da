"""The records of one instance, before and after, and what all families of the suite share."""

from __future__ import annotations

import copy
import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from muster_suites.api.records.schema import SCHEMA
from muster_suites.frame import Draw, Instance
from muster_suites.service.store import Row
from muster_suites.service.task import URL, Case, Program, assigned, instance

PROGRAM: Final = Program(
    name="records",
    schema=SCHEMA,
    modules=tuple(
        f"muster_suites.api.records.{name}"
        for name in ("server", "call", "jobs", "ledger", "manual", "resources", "rows", "schema")
    ),
    client=Path(__file__).with_name("client.py").read_text("utf-8"),
)


class Records:
    """Rows by table. `today` is fixed for an instance; `token_uses`, `burst` and `lose_every` set traps (0: none)."""

    def __init__(
        self, draw: Draw, *, token_uses: int = 0, burst: int = 0, lose_every: int = 0, busy: bool = False
    ) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.today = date(2031, 3, 1) + timedelta(days=draw.number(0, 200))
        self.settings = {
            "client_id": draw.pair(),
            "client_secret": draw.hexadecimal(16),
            "secret": draw.hexadecimal(32),
            "token_uses": str(token_uses),
            "burst": str(burst),
            "lose_every": str(lose_every),
            "busy": "yes" if busy else "no",
        }

    def copy(self) -> Records:
        """The same records, which may be changed apart from these."""
        other = copy.copy(self)
        other.rows = copy.deepcopy(self.rows)
        return other

    def table(self, name: str) -> list[Row]:
        return self.rows.setdefault(name, [])

    def add(self, table: str, **row: object) -> Row:
        rows = self.table(table)
        rows.append({"id": len(rows) + 1, **row} if table != "catalogue" else row)
        return rows[-1]

    def select(self, table: str, **match: object) -> list[Row]:
        return [row for row in self.table(table) if all(row[key] == value for key, value in match.items())]

    def get(self, table: str, **match: object) -> Row:
        """The one row with these values."""
        (row,) = self.select(table, **match)
        return row

    def day(self, back: int) -> str:
        """ISO date, that many days ago."""
        return (self.today - timedelta(days=back)).isoformat()


def task(
    before: Records,
    after: Records,
    *,
    text: str,
    solve: str,
    values: Mapping[str, object],
    max_turns: int,
    materials: Mapping[str, str] | None = None,
    loose: Iterable[str] = (),
) -> Instance:
    """`solve` is Python that uses `api` of `client`, and `values` by name.

    `loose`: tables with new records, whose numbers are not compared.
    """
    settings = before.settings
    begin = f"api = Client({URL!r}, {settings['client_id']!r}, {settings['client_secret']!r})\n"
    versions: dict[str, tuple[str, ...]] = dict.fromkeys(_VERSIONED, ("version",))
    return instance(
        PROGRAM,
        Case(
            instruction=(
                f"A records service answers at {URL}/v1 (`curl -s {URL}/v1` explains it). Your client_id is "
                f"{settings['client_id']}, your client_secret is {settings['client_secret']}. Everything must be done "
                f"through the service.\n\n{text}\n\nChange nothing else."
            ),
            before=before.rows,
            after=after.rows,
            settings=settings,
            steps=f"{begin}{assigned(values)}{solve}",
            max_turns=max_turns,
            materials=materials or {},
            loose={**versions, **{table: ("id", *versions.get(table, ())) for table in loose}},
        ),
    )


_VERSIONED: Final[tuple[str, ...]] = (
    "contacts",
    "orders",
    "refunds",
    "reports",
    "accounts",
    "documents",
    "volumes",
    "snapshots",
    "items",
    "members",
    "assets",
)


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
