"""Bring prices and stock in line with a file, through the pages of the office."""

from __future__ import annotations

from typing import Final

from muster_suites.frame import Draw, Family, Instance
from muster_suites.website.shop.pages import money
from muster_suites.website.task import AS_STAFF, staff_materials, task
from muster_suites.website.world import Shop

_HEAD: Final = "sku,price,stock\n"


def _make(draw: Draw) -> Instance:
    shop = Shop(draw)
    shop.stock_up(draw.at(6, 12, 24, 36, 48))
    staff = shop.user(role="staff")
    after, listed = shop.copy(), list[str]()
    products = draw.sample(after.table("products"), draw.at(1, 3, 8, 12, 16))
    for number, row in enumerate(products):
        stock = "" if draw.difficulty >= 4 and number % 4 == 3 else str(row["stock"])
        if draw.difficulty < 3 or number % 2:
            row["price_cents"] += draw.choice((-1, 1)) * draw.number(1, 15) * 10
        listed.append(f"{row['sku']},{money(row['price_cents'])},{stock}\n")
        if not stock:
            row["stock"] = 0
    said = [AS_STAFF]
    if draw.difficulty == 1:
        said.append(f"Set the price of {products[0]['name']} to {money(products[0]['price_cents'])}.")
    else:
        said.append("Each line of /app/prices.csv has a SKU, a price and a stock: bring the shop in line with it.")
    if draw.difficulty >= 4:
        said.append("Where the file has no stock, the product is discontinued: set its stock to 0 as well.")
    if draw.difficulty == 5:
        said.append(f"After that, raise the price of every product of the category {shop.categories[0]} by 1.00.")
        for row in after.select("products", category=shop.categories[0]):
            row["price_cents"] += 100
    file = {"prices_csv": "".join([_HEAD, *draw.shuffled(listed)])} if draw.difficulty > 1 else {}
    return task(
        shop,
        after,
        text=" ".join(said),
        user=staff,
        solve=_SOLVE,
        values={
            "LISTED": [] if file else [_HEAD, *listed],
            "DEARER": shop.categories[0] if draw.difficulty == 5 else "",
        },
        max_turns=draw.at(10, 14, 20, 26, 32),
        materials=staff_materials(shop, staff, **file),
    )


_SOLVE = """\
import csv

wanted = {row["sku"]: row for row in csv.DictReader(LISTED or lines("/app/prices.csv"))}
for row in list(site.rows("/office/products")):
    new = wanted.get(row["SKU"], {"price": row["Price"], "stock": row["In stock"]})
    price = cents(new["price"]) + (100 if row["Category"] == DEARER else 0)
    stock = new["stock"] or "0"
    if (price, stock) != (cents(row["Price"]), row["In stock"]):
        site.submit(row["href"], row["href"], price=f"{price // 100}.{price % 100:02d}", stock=stock)
"""

PRICES: Final = Family(
    name="website-prices",
    suite="website",
    make=_make,
    levels=(
        "one price",
        "three, from a file",
        "eight lines of a file, half of them right already",
        "twelve, some products discontinued",
        "sixteen of 48, and a whole category becomes dearer",
    ),
)
