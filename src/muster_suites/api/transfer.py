"""Book transfers so that no account falls below its floor: one by one, or in a batch, or set off against each other."""

from __future__ import annotations

from typing import Final

from muster_suites.api.world import Records, csv_text, task
from muster_suites.frame import Draw, Family, Instance
from muster_suites.service.store import Row

_COLUMNS: Final = ("source", "target", "amount_cents", "note")


def _make(draw: Draw) -> Instance:
    records = Records(draw)
    names = draw.pairs(draw.at(3, 4, 4, 6, 8))
    listed = _simple(draw, records, names) if draw.difficulty <= 2 else _circle(draw, records, names)
    booked = _netted(listed) if draw.difficulty >= 4 else listed
    if draw.difficulty == 5:
        records.add("accounts", name="fees", balance_cents=0, floor_cents=0)
        booked = [*booked, *(_fee(entry) for entry in booked)]
    after = records.copy()
    for entry in booked:
        after.add("transfers", **entry)
        after.get("accounts", name=entry["source"])["balance_cents"] -= entry["amount_cents"]
        after.get("accounts", name=entry["target"])["balance_cents"] += entry["amount_cents"]
    assert all(row["balance_cents"] >= row["floor_cents"] for row in after.table("accounts"))
    file = csv_text(_COLUMNS, listed)
    return task(
        records,
        after,
        text=_said(draw, listed[0]),
        solve=_SOLVE,
        values={
            "LISTED": file.splitlines() if draw.difficulty == 1 else [],
            "FILE": f"/app/{_file(draw)}",
            "SET_OFF": draw.difficulty >= 4,
            "FEE": draw.difficulty == 5,
        },
        max_turns=draw.at(8, 10, 12, 14, 16),
        materials={_file(draw): file} if draw.difficulty > 1 else {},
        loose=["transfers"],
    )


def _file(draw: Draw) -> str:
    return "debts.csv" if draw.difficulty >= 4 else "transfers.csv"


def _entry(source: str, target: str, amount_cents: int, note: str) -> Row:
    return {"source": source, "target": target, "amount_cents": amount_cents, "note": note}


def _simple(draw: Draw, records: Records, names: list[str]) -> list[Row]:
    """Transfers that can be booked in any order."""
    for name in names:
        records.add("accounts", name=name, balance_cents=draw.number(50_000, 90_000), floor_cents=0)
    pairs = [draw.sample(names, 2) for _ in range(draw.at(1, 3, 0, 0, 0))]
    return [_entry(source, target, draw.number(100, 9000), draw.pair()) for source, target in pairs]


def _circle(draw: Draw, records: Records, names: list[str]) -> list[Row]:
    """Each account owes the next one more than it can spare before it is paid itself: no transfer can come first."""
    amounts = [draw.number(5_000, 60_000) for _ in names]
    listed: list[Row] = []
    for place, name in enumerate(names):
        owed, paid = amounts[place], amounts[place - 1]
        floor = draw.number(1, 50) * 100
        # enough for a fee of 1 percent on what it is paid, too little to pay before it is paid
        slack = draw.number(paid // 50 + 2, min(owed, paid) // 2)
        records.add("accounts", name=name, balance_cents=floor + max(0, owed - paid) + slack, floor_cents=floor)
        target = names[(place + 1) % len(names)]
        back = draw.number(100, 4000) if draw.difficulty >= 4 else 0
        listed.append(_entry(name, target, owed + back, draw.pair()))
        if back:
            listed.append(_entry(target, name, back, draw.pair()))
    return draw.shuffled(listed)


def _netted(listed: list[Row]) -> list[Row]:
    """Net amount that each two accounts owe each other in the end. Those of a pair are in the order of their names."""
    owed: dict[tuple[str, str], int] = {}
    for entry in listed:
        first, second = sorted((entry["source"], entry["target"]))
        sign = 1 if entry["source"] == first else -1
        owed[first, second] = owed.get((first, second), 0) + sign * entry["amount_cents"]
    return [
        _entry(first, second, amount, "settled") if amount > 0 else _entry(second, first, -amount, "settled")
        for (first, second), amount in owed.items()
        if amount
    ]


def _fee(entry: Row) -> Row:
    return _entry(entry["target"], "fees", -(-entry["amount_cents"] // 100), "fee")


def _said(draw: Draw, first: Row) -> str:
    if draw.difficulty == 1:
        return f"Make this transfer: {', '.join(f'{name} {first[name]}' for name in _COLUMNS)}."
    said = f"Book the transfers of /app/{_file(draw)}, each as it stands there."
    if draw.difficulty >= 4:
        said = (
            f"In each line of /app/{_file(draw)} the source owes the target an amount. Settle these debts: for each "
            "two accounts one transfer of what one owes the other in the end, or none if that is nothing, with the "
            "note settled."
        )
    if draw.difficulty == 5:
        said += (
            " For each of these transfers book another one, with the note fee: 1 percent of its amount, rounded up to "
            "whole cents, from the account that receives it to the account fees."
        )
    if draw.difficulty >= 3:
        said += " No account may be below its floor afterwards, and none is if all of it is booked together."
    return said


_SOLVE = """\
import csv

entries = [{**row, "amount_cents": int(row["amount_cents"])} for row in csv.DictReader(LISTED or lines(FILE))]
if SET_OFF:
    owed = {}
    for row in entries:
        one, other, amount = row["source"], row["target"], row["amount_cents"]
        owed[one, other] = owed.get((one, other), 0) + amount
        owed[other, one] = owed.get((other, one), 0) - amount
    pairs = [(one, other, amount) for (one, other), amount in owed.items() if amount > 0]
    entries = [{"source": s, "target": t, "amount_cents": amount, "note": "settled"} for s, t, amount in pairs]
if FEE:
    fees = [(row["target"], (row["amount_cents"] + 99) // 100) for row in entries]
    entries += [{"source": s, "target": "fees", "amount_cents": amount, "note": "fee"} for s, amount in fees]
api.post("/v1/batches", {"transfers": entries})
"""

TRANSFER: Final = Family(
    name="api-transfer",
    suite="api",
    make=_make,
    levels=(
        "one transfer",
        "three, from a file, in any order",
        "four that only a batch can book",
        "debts of six accounts, set off against each other",
        "eight accounts, and a fee on each transfer",
    ),
)
