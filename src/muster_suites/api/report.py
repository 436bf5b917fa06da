"""Add up orders over many pages, and make reports of the sums."""

from __future__ import annotations

from typing import Final

from muster_suites.api.world import Records, task
from muster_suites.frame import Draw, Family, Instance
from muster_suites.service.store import Row

_STATES: Final = ("paid", "paid", "open", "cancelled")


def _make(draw: Draw) -> Instance:
    records = Records(draw, token_uses=draw.at(0, 0, 0, 0, 10))
    regions = draw.words(draw.at(2, 2, 3, 4, 5))
    for number in range(draw.at(8, 24, 45, 70, 120)):
        region = regions[number] if number < len(regions) else draw.choice(regions)
        order = _add_order(draw, records, number, region)
        if draw.difficulty == 5 and draw.chance(0.2):
            amount = draw.number(100, order["total_cents"])
            records.add("refunds", order_number=order["number"], amount_cents=amount)
    after, states = records.copy(), set(_STATES) - ({"cancelled"} if draw.difficulty >= 2 else set())
    first, last = (records.day(40), records.day(10)) if draw.difficulty >= 4 else ("", "9999")
    asked = regions[:1] if draw.difficulty <= 2 else regions
    for region in asked:
        orders = [
            row
            for row in records.select("orders", region=region)
            if row["status"] in states and first <= row["placed_on"] <= last
        ]
        numbers = {row["number"] for row in orders}
        back = sum(row["amount_cents"] for row in records.table("refunds") if row["order_number"] in numbers)
        total = sum(row["total_cents"] for row in orders) - back
        after.add("reports", region=region, orders=len(orders), total_cents=total)
    return task(
        records,
        after,
        text=_said(draw, regions[0], first, last),
        solve=_SOLVE,
        values={
            "REGIONS": asked if draw.difficulty <= 2 else [],
            "STATES": sorted(states),
            "FIRST": first,
            "LAST": last,
        },
        max_turns=draw.at(8, 12, 14, 16, 20),
        loose=["reports"],
    )


def _add_order(draw: Draw, records: Records, number: int, region: str) -> Row:
    return records.add(
        "orders",
        number=f"{draw.choice('ABCDEF')}{draw.number(100, 999)}-{number}",
        region=region,
        status=draw.choice(_STATES),
        placed_on=records.day(draw.number(0, 59)),
        total_cents=draw.number(500, 90_000),
    )


def _said(draw: Draw, region: str, first: str, last: str) -> str:
    which = f"the region {region}" if draw.difficulty <= 2 else "each region"
    said = (
        f"Add up the orders of {which} and make a report of it: region, orders (their number), total_cents (their sum)."
    )
    if draw.difficulty >= 2:
        said += " Cancelled orders do not count."
    if draw.difficulty >= 4:
        said += f" Nor do orders placed before {first} or after {last}. A region without such orders has a report too."
    if draw.difficulty == 5:
        said += " Refunds of the orders that count reduce their sum."
    return said


_SOLVE = """\
orders = list(api.every("orders"))
refunds = list(api.every("refunds"))
for region in REGIONS or {order["region"] for order in orders}:
    own = [order for order in orders if order["region"] == region and order["status"] in STATES]
    own = {order["number"]: order["total_cents"] for order in own if FIRST <= order["placed_on"] <= LAST}
    back = sum(refund["amount_cents"] for refund in refunds if refund["order_number"] in own)
    api.post("/v1/reports", {"region": region, "orders": len(own), "total_cents": sum(own.values()) - back})
"""

REPORT: Final = Family(
    name="api-report",
    suite="api",
    make=_make,
    levels=(
        "one region, 8 orders on one page",
        "one region, cancelled orders left out, three pages",
        "three regions, five pages",
        "four regions, days from and to",
        "five regions, refunds from another list; tokens are used up after 10 requests",
    ),
)
