"""Repair the roles of members after a policy: departments, inactive members, roles with an end."""

from __future__ import annotations

import json
from typing import Final

from muster_suites.api.world import Records, csv_text, task
from muster_suites.frame import Draw, Family, Instance
from muster_suites.service.store import Row

_EXTRA_COLUMNS: Final = ("login", "role", "until")


def _make(draw: Draw) -> Instance:
    records = Records(draw, token_uses=draw.at(0, 0, 0, 0, 25))
    departments, names = draw.words(draw.at(2, 2, 3, 4, 5)), draw.words(8)
    policy = {department: sorted(draw.sample(names, draw.number(1, 3))) for department in departments}
    _add_members(draw, records, policy, names)
    extras = _extras(draw, records, names) if draw.difficulty == 5 else []
    first, after = records.table("members")[0], records.copy()
    key, value = {1: ("login", first["login"]), 2: ("department", first["department"])}.get(draw.difficulty, ("", ""))
    for row in after.table("members"):
        if key and row[key] != value:
            continue
        valid = {one["role"] for one in extras if one["login"] == row["login"] and one["until"] >= records.day(0)}
        row["roles"] = ",".join(sorted({*policy[row["department"]], *valid})) if row["active"] == "yes" else ""
    materials = {"policy.json": json.dumps(policy, indent=1) + "\n"}
    if extras:
        materials["extra.csv"] = csv_text(_EXTRA_COLUMNS, extras)
    return task(
        records,
        after,
        text=_said(draw, first, records.day(0)),
        solve=_SOLVE,
        values={"KEY": key, "VALUE": value, "EXTRA": bool(extras), "TODAY": records.day(0)},
        max_turns=draw.at(8, 12, 16, 20, 26),
        materials=materials,
    )


def _add_members(draw: Draw, records: Records, policy: dict[str, list[str]], names: list[str]) -> None:
    """About half of them have the right roles; the first one has not."""
    for number in range(draw.at(3, 6, 16, 26, 40)):
        department = draw.choice(list(policy))
        roles = policy[department] if number and draw.chance(0.5) else draw.sample(names, draw.number(0, 3))
        active = "no" if number and draw.difficulty >= 4 and draw.chance(0.25) else "yes"
        if number == 0:
            roles = [name for name in names if name not in policy[department]][:2]
        login = f"{draw.pair('')}{number}"
        records.add("members", login=login, department=department, active=active, roles=",".join(sorted(roles)))


def _extras(draw: Draw, records: Records, names: list[str]) -> list[Row]:
    return [
        {"login": row["login"], "role": draw.choice(names), "until": records.day(draw.number(-20, 20))}
        for row in draw.sample(records.table("members"), 10)
    ]


def _said(draw: Draw, first: Row, today: str) -> str:
    if draw.difficulty == 1:
        return f"Give the member {first['login']} the roles of its department, as /app/policy.json says, and no other."
    if draw.difficulty == 2:
        who = f"every member of the department {first['department']}"
        return f"Give {who} the roles that /app/policy.json says, and no other."
    said = "Give every member the roles that /app/policy.json says for the department, and no other."
    if draw.difficulty >= 4:
        said += " A member that is not active has no role at all."
    if draw.difficulty == 5:
        said += (
            " The active members in /app/extra.csv have one role more, until the day given there (included). Today is "
            f"{today}."
        )
    return said


_SOLVE = """\
import csv

policy = json.loads("".join(lines("/app/policy.json")))
extra = list(csv.DictReader(lines("/app/extra.csv"))) if EXTRA else []
for member in list(api.every("members")):
    if not KEY or member[KEY] == VALUE:
        more = {row["role"] for row in extra if row["login"] == member["login"] and row["until"] >= TODAY}
        roles = sorted({*policy[member["department"]], *more}) if member["active"] == "yes" else []
        if member["roles"] != roles:
            api.change(f"/v1/members/{member['id']}", lambda record: {"roles": roles})
"""

ROLES: Final = Family(
    name="api-roles",
    suite="api",
    make=_make,
    levels=(
        "one member",
        "one department",
        "all 16 members of two pages",
        "inactive members lose all roles",
        "40 members, roles with an end, tokens are used up",
    ),
)
