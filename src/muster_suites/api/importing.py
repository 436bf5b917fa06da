"""Import records into a service that loses answers and asks for pauses, without making any twice."""

from __future__ import annotations

from typing import Final

from muster_suites.api.world import Records, csv_text, task
from muster_suites.frame import Draw, Family, Instance
from muster_suites.service.store import Row

_COLUMNS: Final = ("code", "name", "quantity")


def _make(draw: Draw) -> Instance:
    records = Records(draw, burst=draw.at(0, 0, 5, 8, 12), lose_every=draw.at(0, 3, 4, 4, 3))
    for _ in range(draw.at(2, 4, 8, 14, 20)):
        _add_item(draw, records)
    after = records.copy()
    lines = [_add_item(draw, after) for _ in range(draw.at(1, 4, 10, 16, 24))]
    if draw.difficulty >= 4:
        lines += [{**row, "quantity": row["quantity"] + 1} for row in draw.sample(records.table("items"), 4)]
    lines = draw.shuffled(lines)
    if draw.difficulty == 5:
        lines += [{**row, "name": draw.pair(" ").title()} for row in draw.sample(lines, 4)]
    said = "Make an item of each line of /app/items.csv. None may be there twice, though answers get lost."
    if draw.difficulty == 1:
        said = f"Make this item: {', '.join(f'{name} {lines[0][name]}' for name in _COLUMNS)}."
    if draw.difficulty >= 4:
        said += " An item whose code is there already stays as it is."
    if draw.difficulty == 5:
        said += " Where the file has a code twice, its first line counts."
    file = csv_text(_COLUMNS, lines)
    return task(
        records,
        after,
        text=said,
        solve=_SOLVE,
        values={"LISTED": file.splitlines() if draw.difficulty == 1 else []},
        max_turns=draw.at(8, 12, 16, 20, 24),
        materials={"items.csv": file} if draw.difficulty > 1 else {},
        loose=["items"],
    )


def _add_item(draw: Draw, records: Records) -> Row:
    name = draw.pair(" ")
    code = f"{name[:2].upper()}{draw.number(10, 99)}-{len(records.table('items'))}"
    return records.add("items", code=code, name=name.title(), quantity=draw.number(1, 500))


_SOLVE = """\
import csv

there = {item["code"] for item in api.every("items")}
for row in csv.DictReader(LISTED or lines("/app/items.csv")):
    if row["code"] not in there:
        there.add(row["code"])
        api.post("/v1/items", {**row, "quantity": int(row["quantity"])})
"""

IMPORT: Final = Family(
    name="api-import",
    suite="api",
    make=_make,
    levels=(
        "one item",
        "four from a file; every third answer is lost",
        "ten, and pauses between writes",
        "some are there already",
        "some lines of the file are there twice",
    ),
)
