"""Bring contacts in line with a list: make, change, delete; phone numbers in several forms; some that stay."""

from __future__ import annotations

from typing import Final

from muster_suites.api.world import Records, csv_text, task
from muster_suites.frame import Draw, Family, Instance
from muster_suites.service.store import Row

_COLUMNS: Final = ("email", "name", "phone", "city")
_NEW: Final = 1000  # numbers of new rows begin here: any will do, they are not compared


def _make(draw: Draw) -> Instance:
    records = Records(draw, token_uses=draw.at(0, 0, 0, 0, 25))
    for _ in range(draw.at(2, 4, 14, 26, 40)):
        records.add("contacts", **_contact(draw), tier=draw.choice(("basic", "basic", "gold")))
    after = records.copy()
    contacts, gone = after.table("contacts"), list[Row]()
    if draw.difficulty >= 3:
        gone = draw.sample(records.table("contacts"), len(contacts) // 5)
        for row in draw.sample([row for row in contacts if row not in gone], len(contacts) // 3):
            row.update(draw.choice(({"city": draw.pair("").title()}, {"phone": _phone(draw)})))
    contacts += [{"id": _NEW + n, **_contact(draw), "tier": "basic"} for n in range(draw.at(1, 3, 4, 5, 8))]
    lines = [row for row in contacts if row not in gone and (draw.difficulty >= 3 or row["id"] >= _NEW)]
    contacts[:] = [row for row in contacts if row not in gone or (draw.difficulty == 5 and row["tier"] == "gold")]
    if draw.difficulty >= 4:
        lines = [{**row, "phone": _written(draw, row["phone"])} for row in lines]
    file = csv_text(_COLUMNS, draw.shuffled(lines))
    return task(
        records,
        after,
        text=_said(draw, lines[0]),
        solve=_SOLVE,
        values={
            "LISTED": file.splitlines() if draw.difficulty == 1 else [],
            "DELETE": draw.difficulty >= 3,
            "STAYS": "gold" if draw.difficulty == 5 else "",
        },
        max_turns=draw.at(8, 10, 18, 22, 26),
        materials={"contacts.csv": file} if draw.difficulty > 1 else {},
        loose=["contacts"],
    )


def _said(draw: Draw, first: Row) -> str:
    if draw.difficulty == 1:
        return f"Make this contact: {', '.join(f'{name} {first[name]}' for name in _COLUMNS)}."
    if draw.difficulty == 2:
        return "Make a contact of each line of /app/contacts.csv."
    said = (
        "Bring the contacts in line with /app/contacts.csv, in which each e-mail address stands once: make those that "
        "are missing, change those that differ, delete those that are not in the file."
    )
    if draw.difficulty >= 4:
        said += " Phone numbers in the file are written in several ways; the country is always 49."
    if draw.difficulty == 5:
        said += " But a contact of the tier gold is never deleted."
    return said


def _contact(draw: Draw) -> Row:
    name = draw.pair(" ")
    email = f"{name.replace(' ', '.')}@example.com"
    return {"email": email, "name": name.title(), "phone": _phone(draw), "city": draw.pair("").title()}


def _phone(draw: Draw) -> str:
    return f"+49{draw.number(1_500_000_000, 1_799_999_999)}"


def _written(draw: Draw, phone: str) -> str:
    rest = phone.removeprefix("+49")
    return draw.choice((phone, f"+49 (0){rest[:3]} {rest[3:]}", f"0{rest[:4]}/{rest[4:]}", f"49-{rest}"))


_SOLVE = """\
import csv
import re

wanted = {row["email"]: row for row in csv.DictReader(LISTED or lines("/app/contacts.csv"))}
there = {row["email"]: row for row in api.every("contacts")}
for email, row in wanted.items():
    digits = re.sub("[^0-9]", "", row["phone"].replace("(0)", ""))
    row["phone"] = "+" + (digits if digits.startswith("49") else "49" + digits.lstrip("0"))
    old = there.get(email)
    new = {name: value for name, value in row.items() if old is None or old[name] != value}
    if old is None:
        api.post("/v1/contacts", row)
    elif new:
        api.change(f"/v1/contacts/{old['id']}", lambda record: new)
for email, row in there.items():
    if DELETE and email not in wanted and row["tier"] != STAYS:
        api.delete(f"/v1/contacts/{row['id']}")
"""

SYNC: Final = Family(
    name="api-sync",
    suite="api",
    make=_make,
    levels=(
        "one contact to make",
        "three, from a file",
        "make, change and delete; two pages",
        "phone numbers in several forms; three pages",
        "gold contacts stay; 40 of them, tokens are used up after 25 requests",
    ),
)
