"""Place an order: products that are named or described, the best coupon, another address."""

from __future__ import annotations

from typing import Final

from muster_suites.frame import Draw, Family, Instance
from muster_suites.service.store import Row
from muster_suites.website.task import task
from muster_suites.website.world import Shop, place_order

Lines = list[tuple[Row, int]]
"""Products and how many of each."""


def _make(draw: Draw) -> Instance:
    shop = Shop(draw)
    shop.stock_up(draw.at(6, 12, 20, 32, 48))
    user = shop.user()
    shop.history(user, 2)
    lines = [(product, draw.number(1, 3)) for product in draw.sample(shop.table("products"), draw.at(1, 2, 2, 2, 3))]
    named = {product["name"]: quantity for product, quantity in lines}
    wanted = [f"- {quantity} x {name}" for name, quantity in named.items()]
    extremes: list[tuple[str, str]] = []
    if draw.difficulty >= 4:
        extra, word = _extreme(draw, shop, [product for product, _ in lines])
        extremes.append((word, extra["category"]))
        lines.append((extra, 1))
        wanted.append(f"- 1 x the {word} product of the category {extra['category']}")
    coupon, discount = _add_coupons(draw, shop, lines)
    to: Row = shop.place() if draw.difficulty == 5 else user
    after = shop.copy()
    place_order(after, user, lines, coupon=coupon, discount=discount, to=to)
    said = [f"Log in as a customer ({shop.login_of(user)}) and place one order of exactly:", *wanted]
    if draw.difficulty == 2:
        said.append(f"Use the coupon {coupon}.")
    elif draw.difficulty > 2:
        said.append("Use the coupon from the page /deals that makes this order cheapest.")
    if draw.difficulty == 5:
        said.append(f"Ship it to {to['street']}, {to['zip']} {to['city']}; the account itself keeps its address.")
    return task(
        shop,
        after,
        text="\n".join(said),
        user=user,
        solve=_SOLVE,
        values={
            "NAMED": named,
            "EXTREMES": extremes,
            "TODAY": shop.day(0),
            "ADDRESS": {key: to[key] for key in ("street", "city", "zip")},
        },
        max_turns=draw.at(10, 14, 18, 22, 26),
    )


def _extreme(draw: Draw, shop: Shop, taken: list[Row]) -> tuple[Row, str]:
    """One product more, and what it is in its category: prices are unique."""
    found: Lines = []
    words = ("cheapest", "most expensive")
    for category in sorted({row["category"] for row in shop.table("products")}):
        by_price = sorted(shop.select("products", category=category), key=lambda row: row["price_cents"])
        found += [(by_price[0], 0), (by_price[-1], 1)]
    row, which = draw.choice([(row, which) for row, which in found if row not in taken])
    return row, words[which]


def _add_coupons(draw: Draw, shop: Shop, lines: Lines) -> tuple[str, int]:
    """Returns the best one and the cents it takes off. At the lowest difficulty there is none."""
    subtotal = sum(row["price_cents"] * quantity for row, quantity in lines)
    kinds = [
        {"percent": draw.number(12, 20)},
        {"percent": draw.number(5, 9)},
        {"percent": draw.number(25, 30), "valid_until": shop.day(draw.number(1, 20))},
        {"percent": draw.number(21, 24), "minimum_cents": subtotal + draw.number(1, 400) * 5},
        {"percent": draw.number(30, 40), "category": draw.choice(shop.categories)},
    ][: draw.at(0, 1, 4, 5, 5)]
    for kind in draw.shuffled(kinds):
        general = {"minimum_cents": subtotal // 2, "category": "", "valid_until": shop.day(-draw.number(5, 60))}
        shop.add("coupons", code=f"{draw.word().upper()}{draw.number(10, 99)}", **{**general, **kind})
    if not kinds:
        return "", 0
    worth = {row["code"]: _discount(shop, row, lines) for row in shop.table("coupons")}
    best = max(worth, key=lambda code: worth[code])
    if list(worth.values()).count(worth[best]) > 1:  # a tie would leave two right answers
        shop.get("coupons", code=best)["percent"] += 1
        worth[best] = _discount(shop, shop.get("coupons", code=best), lines)
    return best, worth[best]


def _discount(shop: Shop, coupon: Row, lines: Lines) -> int:
    subtotal = sum(row["price_cents"] * quantity for row, quantity in lines)
    if coupon["valid_until"] < shop.day(0) or subtotal < coupon["minimum_cents"]:
        return 0
    eligible = sum(r["price_cents"] * quantity for r, quantity in lines if coupon["category"] in ("", r["category"]))
    return eligible * coupon["percent"] // 100


_SOLVE = """\
basket = [(site.find("/products?q=" + name.replace(" ", "+"), Product=name), count) for name, count in NAMED.items()]
for word, category in EXTREMES:
    by_price = list(site.rows("/products?sort=price&category=" + category))
    basket.append((by_price[0 if word == "cheapest" else -1], 1))
for row, quantity in basket:
    site.submit(row["href"], "/cart/add", quantity=quantity)
total = sum(cents(row["Price"]) * quantity for row, quantity in basket)
worth = {"": 0}
for coupon in site.rows("/deals"):
    if cents(coupon["Minimum order"]) <= total and coupon["Valid until (that day included)"] >= TODAY:
        only = [(row, n) for row, n in basket if coupon["Only for"] in ("everything", row["Category"])]
        part = sum(cents(row["Price"]) * quantity for row, quantity in only)
        worth[coupon["Code"]] = part * int(coupon["Discount"].split()[0]) // 100
site.submit("/checkout", "/checkout", coupon=max(worth, key=worth.get), **ADDRESS)
"""

ORDER: Final = Family(
    name="website-order",
    suite="website",
    make=_make,
    levels=(
        "one product of 6",
        "two products, a coupon that is named",
        "two products of 20, the best of four coupons has to be found",
        "and one product that is only described; five coupons, one for a category",
        "four products of 48, to another address",
    ),
)
