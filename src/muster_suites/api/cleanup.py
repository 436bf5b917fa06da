"""Delete what nobody uses any more, in the order that the service asks for, and nothing that must stay."""

from __future__ import annotations

from typing import Final

from muster_suites.api.world import Records, task
from muster_suites.frame import Draw, Family, Instance
from muster_suites.service.store import Row

_STALE_DAYS: Final = 90


def _make(draw: Draw) -> Instance:
    records = Records(draw, token_uses=draw.at(0, 0, 0, 0, 20))
    owners = draw.words(3)
    for number in range(draw.at(4, 8, 18, 28, 40)):
        _add_volume(draw, records, number, owners[0] if number == 0 else draw.choice(owners))
    limit = records.day(_STALE_DAYS)
    gone = _unused(records, limit)
    if draw.difficulty <= 2:
        gone = records.select("volumes", owner=owners[0])[: draw.at(1, 8, 0, 0, 0)]
    numbers, after = {row["id"] for row in gone}, records.copy()
    after.rows["volumes"] = [row for row in after.table("volumes") if row["id"] not in numbers]
    after.rows["snapshots"] = [row for row in after.table("snapshots") if row["volume_id"] not in numbers]
    return task(
        records,
        after,
        text=_said(draw, gone[0], limit),
        solve=_SOLVE,
        values={
            "NAME": gone[0]["name"] if draw.difficulty == 1 else "",
            "OWNER": owners[0] if draw.difficulty == 2 else "",
            "LIMIT": limit,
        },
        max_turns=draw.at(8, 10, 14, 20, 26),
    )


def _add_volume(draw: Draw, records: Records, number: int, owner: str) -> None:
    """The first one is to be deleted at every level."""
    volume = records.add(
        "volumes",
        name=f"{draw.pair()}-{number}",
        owner=owner,
        last_used=records.day(draw.number(0, 2 * _STALE_DAYS) if number else 2 * _STALE_DAYS),
        protected="yes" if number and draw.difficulty >= 3 and draw.chance(0.3) else "no",
    )
    if draw.difficulty >= 4 and draw.chance(0.4):
        for _ in range(draw.number(1, 2)):
            keep = "yes" if draw.difficulty == 5 and number and draw.chance(0.3) else "no"
            records.add("snapshots", volume_id=volume["id"], keep=keep)


def _unused(records: Records, limit: str) -> list[Row]:
    kept = {row["volume_id"] for row in records.select("snapshots", keep="yes")}
    volumes = records.select("volumes", protected="no")
    return [row for row in volumes if row["last_used"] < limit and row["id"] not in kept]


def _said(draw: Draw, first: Row, limit: str) -> str:
    if draw.difficulty == 1:
        return f"Delete the volume {first['name']}."
    if draw.difficulty == 2:
        return f"Delete all volumes of the owner {first['owner']}."
    said = f"Delete every volume that was last used before {limit}, but none that is protected."
    if draw.difficulty >= 4:
        said += " A volume with snapshots cannot be deleted before these are; do not delete snapshots of other volumes."
    if draw.difficulty == 5:
        said += " A volume of which any snapshot is marked keep stays, with all its snapshots."
    return said


_SOLVE = """\
snapshots = list(api.every("snapshots"))
for volume in list(api.every("volumes")):
    own = [snapshot for snapshot in snapshots if snapshot["volume_id"] == volume["id"]]
    if NAME or OWNER:
        goes = NAME == volume["name"] or OWNER == volume["owner"]
    else:
        goes = volume["last_used"] < LIMIT and volume["protected"] == "no"
    if goes and "yes" not in [snapshot["keep"] for snapshot in own]:
        for snapshot in own:
            api.delete(f"/v1/snapshots/{snapshot['id']}")
        api.delete(f"/v1/volumes/{volume['id']}")
"""

CLEANUP: Final = Family(
    name="api-cleanup",
    suite="api",
    make=_make,
    levels=(
        "one volume",
        "all of an owner",
        "all before a day, protected ones stay; two pages",
        "snapshots have to go first",
        "snapshots to keep; 40 volumes, tokens are used up",
    ),
)
