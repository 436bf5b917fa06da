"""Bring a wish list in line with a file: priorities, highest prices, what is there already, what is sold out."""

from __future__ import annotations

from typing import Final

from muster_suites.frame import Draw, Family, Instance
from muster_suites.service.store import Row
from muster_suites.website.shop.pages import money
from muster_suites.website.task import task
from muster_suites.website.world import Shop


def _make(draw: Draw) -> Instance:
    shop = Shop(draw)
    shop.stock_up(draw.at(8, 12, 20, 30, 40))
    user, other = shop.user(), shop.user()
    products = draw.shuffled(shop.table("products"))
    count = draw.at(1, 3, 6, 8, 12)
    wanted, there = products[:count], products[count : count + draw.at(1, 2, 3, 4, 6)]
    sold_out = draw.sample(there, 2) if draw.difficulty == 5 else []
    for row in sold_out:
        row["stock"] = 0
    for row in [*there, *(wanted[:2] if draw.difficulty >= 4 else ())]:
        shop.add("wishes", user_id=user["id"], product_id=row["id"], priority=2)
    shop.add("wishes", user_id=other["id"], product_id=wanted[0]["id"], priority=3)
    after, listed = shop.copy(), list[str]()
    for number, row in enumerate(wanted):  # the first one is never too expensive
        over = draw.number(5, 900) * (draw.choice((-1, 1)) if number else 1)
        priority, cap = draw.choice((1, 3)), max(5, row["price_cents"] + over)
        listed.append(f"{row['name']}; {priority}" + (f"; {money(cap)}" if draw.difficulty >= 3 else ""))
        if draw.difficulty < 3 or row["price_cents"] <= cap:
            _wish(after, user, row, priority)
    for row in sold_out:
        after.table("wishes").remove({"user_id": user["id"], "product_id": row["id"], "priority": 2})
    return task(
        shop,
        after,
        text=" ".join([f"Log in as a customer ({shop.login_of(user)}).", *_said(draw, listed)]),
        user=user,
        solve=_SOLVE,
        values={"LISTED": listed if draw.difficulty == 1 else [], "CLEAR": draw.difficulty == 5},
        max_turns=draw.at(8, 12, 18, 22, 28),
        materials={"wishes.txt": "".join(f"{line}\n" for line in listed)} if draw.difficulty > 1 else {},
    )


def _wish(shop: Shop, user: Row, product: Row, priority: int) -> None:
    wishes = shop.table("wishes")
    wishes[:] = [wish for wish in wishes if (wish["user_id"], wish["product_id"]) != (user["id"], product["id"])]
    shop.add("wishes", user_id=user["id"], product_id=product["id"], priority=priority)


def _said(draw: Draw, listed: list[str]) -> list[str]:
    if draw.difficulty == 1:
        name, priority = listed[0].split("; ")
        return [f"Put {name} on the wish list with priority {priority}."]
    columns = "a product, a priority and a highest price" if draw.difficulty >= 3 else "a product and a priority"
    said = [
        f"Each line of /app/wishes.txt has {columns}, divided by semicolons.",
        "Put these products on the wish list with these priorities.",
    ]
    if draw.difficulty >= 3:
        said.append("Leave out every product that costs more than its highest price.")
    if draw.difficulty >= 4:
        said.append("One that is on the list already gets the priority of the file, or stays as it is if left out.")
    if draw.difficulty == 5:
        said.append("At last remove from the list whatever the shop has none of in stock.")
    return said


_SOLVE = """\
for line in LISTED or lines("/app/wishes.txt"):
    name, priority, *cap = line.split("; ")
    row = site.find("/products?q=" + name.replace(" ", "+"), Product=name)
    if not cap or cents(row["Price"]) <= cents(cap[0]):
        site.submit(row["href"], "/wishes/add", priority=priority)
for row in list(site.rows("/wishes")):
    if CLEAR and row["In stock"] == "0":
        site.submit("/wishes", "/wishes/remove", product=row["href"].split("/")[-1])
"""

WISHES: Final = Family(
    name="website-wishes",
    suite="website",
    make=_make,
    levels=(
        "one product",
        "three, from a file",
        "six, some too expensive",
        "eight, two of them on the list already",
        "twelve, and sold-out ones have to go",
    ),
)
