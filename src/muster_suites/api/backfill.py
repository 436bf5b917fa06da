"""Fill in missing fields from look-ups that take a while: jobs to be asked again, jobs that fail."""

from __future__ import annotations

from typing import Final

from muster_suites.api.world import Records, task
from muster_suites.frame import Draw, Family, Instance


def _make(draw: Draw) -> Instance:
    records = Records(draw, token_uses=draw.at(0, 0, 0, 0, 30), busy=draw.difficulty >= 4)
    count = draw.at(2, 5, 16, 26, 40)
    missing = draw.sample(range(count), draw.at(1, 2, 4, 6, 10))
    unknown = missing[: draw.at(0, 0, 0, 1, 3)]
    after = records.copy()
    for number in range(count):
        serial = f"{draw.pair()}-{draw.hexadecimal(4)}"
        known = {"model": f"{draw.pair(' ').title()} {draw.number(1, 9)}", "weight_g": draw.number(50, 9000)}
        if number not in unknown:
            for one in (records, after):
                one.add("catalogue", serial=serial, **known)
        found = {"model": "unknown", "weight_g": 0} if number in unknown else known
        records.add("assets", serial=serial, **({"model": "", "weight_g": 0} if number in missing else known))
        after.add("assets", serial=serial, **found)
    serials = [row["serial"] for row in records.table("assets") if not row["model"]]
    which = {1: f"The asset {serials[0]} has", 2: f"The assets {' and '.join(serials)} have"}
    said = (
        f"{which.get(draw.difficulty, 'Some assets have')} no model and no weight. Look up what is missing through "
        "/v1/lookups by the serial number, and set model and weight_g."
    )
    if draw.difficulty >= 4:
        said += " Where nobody knows the serial number, set the model to unknown and leave the weight at 0."
    turns = draw.at(10, 14, 18, 24, 30)
    return task(records, after, text=said, solve=_SOLVE, values={}, max_turns=turns)


_SOLVE = """\
for asset in list(api.every("assets")):
    if not asset["model"]:
        found = api.look_up(asset["serial"]) or {"model": "unknown"}
        api.change(f"/v1/assets/{asset['id']}", lambda record: found)
"""

BACKFILL: Final = Family(
    name="api-backfill",
    suite="api",
    make=_make,
    levels=(
        "one asset that is named",
        "two that are named",
        "four that have to be found",
        "six, one unknown; some jobs fail and have to be started again",
        "ten of 40, three unknown, tokens are used up",
    ),
)
