"""Answer tickets by posted rules, some of which depend on the order that a ticket is about."""

from __future__ import annotations

from typing import Final

from muster_suites.frame import Draw, Family, Instance
from muster_suites.service.store import Row
from muster_suites.website.shop.pages import money
from muster_suites.website.task import AS_STAFF, staff_materials, task
from muster_suites.website.world import Shop

_RULES: Final = (
    ("Where is my parcel?", "asks where a parcel is", "shipping", "on its way"),
    ("It arrived broken.", "says that something arrived broken", "returns", "please send a photo"),
    ("I was charged twice.", "says that a customer was charged twice", "billing", "money back"),
    ("When can I buy it again?", "asks when something can be bought", "products", "not in stock"),
)
"""What a customer writes, what the rule calls that, queue, answer."""
_LATE_DAYS: Final = 14
_LARGE_CENTS: Final = 10_000


def _make(draw: Draw) -> Instance:
    shop = Shop(draw)
    shop.stock_up(12)
    staff = shop.user(role="staff")
    users = [shop.user() for _ in range(draw.at(1, 2, 4, 6, 8))]
    rules = _RULES[: draw.at(1, 2, 4, 4, 4)]
    settled = [_add_ticket(draw, shop, draw.choice(users), draw.choice(rules)) for _ in range(draw.at(1, 3, 8, 12, 18))]
    shop.add("documents", name="tickets", title="How we answer", text="\n".join(_said(draw, rules)))
    after = shop.copy()
    for ticket, closed in zip(after.table("tickets"), settled, strict=True):
        ticket.update(status="closed", **closed)
    today = f" Today is {shop.day(0)}." if draw.difficulty >= 4 else ""
    return task(
        shop,
        after,
        text=(
            f"{AS_STAFF} Answer every open ticket at /office/tickets by the rules of the page /pages/tickets, and "
            f"close it.{today}"
        ),
        user=staff,
        solve=_SOLVE,
        values={
            "RULES": rules,
            "LATE": shop.day(_LATE_DAYS) if draw.difficulty >= 4 else "",
            "LARGE": _LARGE_CENTS if draw.difficulty == 5 else 10**9,
        },
        max_turns=draw.at(10, 14, 22, 30, 40),
        materials=staff_materials(shop, staff),
    )


def _add_ticket(draw: Draw, shop: Shop, user: Row, rule: tuple[str, str, str, str]) -> Row:
    """Returns the queue and the answer that it must get. From level 3 on its subject says little."""
    lines = [(product, draw.number(1, 2)) for product in draw.sample(shop.table("products"), 2)]
    order = shop.order(user, back=draw.number(3, 30), status="shipped", lines=lines)
    writes, _, queue, answer = rule
    subject = writes if draw.difficulty < 3 else draw.choice(("Question", "My order", "Please answer"))
    body = f"{writes} Please help. {user['name']}"
    empty = {"status": "open", "queue": "", "answer": ""}
    shop.add("tickets", user_id=user["id"], order_id=order["id"], subject=subject, body=body, **empty)
    if draw.difficulty >= 4 and queue == "shipping" and order["placed_on"] < shop.day(_LATE_DAYS):
        queue, answer = "billing", "money back"
    if draw.difficulty == 5 and answer == "money back" and order["total_cents"] > _LARGE_CENTS:
        answer = "passed on"
    return {"queue": queue, "answer": answer}


def _said(draw: Draw, rules: tuple[tuple[str, str, str, str], ...]) -> list[str]:
    said = [f"A ticket that {called}: queue {queue}, answer {answer}." for _, called, queue, answer in rules]
    if draw.difficulty >= 4:
        said.append(
            f"But where a parcel is missing that was ordered more than {_LATE_DAYS} days before today: queue billing, "
            "answer money back."
        )
    if draw.difficulty == 5:
        limit = money(_LARGE_CENTS)
        said.append(f"And where money would go back for an order of more than {limit}: same queue, answer passed on.")
    return said


_SOLVE = r"""
import re

for row in list(site.rows("/office/tickets")):
    page = site.get(row["href"])
    queue, answer = next((queue, answer) for writes, _, queue, answer in RULES if writes in page)
    placed, total = re.search(r"placed on (\S+), \w+, ([0-9.]+[0-9])", page).groups()
    if queue == "shipping" and placed < LATE:
        queue, answer = "billing", "money back"
    if answer == "money back" and cents(total) > LARGE:
        answer = "passed on"
    site.submit(page, row["href"], queue=queue, answer=answer, status="closed")
"""

TICKETS: Final = Family(
    name="website-tickets",
    suite="website",
    make=_make,
    levels=(
        "one ticket",
        "3 tickets, two rules",
        "8 tickets, four rules; subjects say nothing",
        "12 tickets, one rule depends on the day of the order",
        "18 tickets, another one on its total",
    ),
)
