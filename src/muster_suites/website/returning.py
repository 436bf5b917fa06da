"""Cancel an order, or return what was delivered: which ones has to be found in a long history."""

from __future__ import annotations

from typing import Final

from muster_suites.frame import Draw, Family, Instance
from muster_suites.service.store import Row
from muster_suites.website.shop.account import REASONS
from muster_suites.website.task import task
from muster_suites.website.world import Shop

_ALL: Final = 1_000_000
Asked = tuple[str, str, int]
"""The beginning of the day, the product ("" for any), and how many lines at most, newest first."""


def _make(draw: Draw) -> Instance:
    shop = Shop(draw)
    shop.stock_up(draw.at(6, 8, 12, 20, 24))
    user, other = shop.user(), shop.user()
    shop.history(other, 3)
    shop.history(user, draw.at(2, 8, 16, 24, 40))
    for back in (2, 1):
        lines = [(product, draw.number(1, 2)) for product in draw.sample(shop.table("products"), 2)]
        shop.order(user, back=back, status="placed", lines=lines)
    reason = draw.choice(REASONS)
    after = shop.copy()
    text, asked = (_cancelled if draw.difficulty <= 2 else _returned)(draw, after, user, reason)
    return task(
        shop,
        after,
        text=f"Log in as a customer ({shop.login_of(user)}). {text} Give the reason: {reason}.",
        user=user,
        solve=_SOLVE,
        values={
            "DAY": asked[0],
            "PRODUCT": asked[1],
            "MOST": asked[2],
            "REASON": reason,
            "CANCEL": draw.difficulty <= 2,
        },
        max_turns=draw.at(8, 10, 14, 20, 26),
        loose={"returns": ("id",)},
    )


def _cancelled(draw: Draw, after: Shop, user: Row, reason: str) -> tuple[str, Asked]:
    """Change `after`; say what is asked for."""
    order = draw.choice(after.select("orders", user_id=user["id"], status="placed"))
    order.update(status="cancelled", reason=reason)
    for line in after.select("order_lines", order_id=order["id"]):
        after.get("products", id=line["product_id"])["stock"] += line["quantity"]
    what = f"order {order['id']}" if draw.difficulty == 1 else f"the order that was placed on {order['placed_on']}"
    return f"Cancel {what}.", (order["placed_on"], "", 1)


def _returned(draw: Draw, after: Shop, user: Row, reason: str) -> tuple[str, Asked]:
    """Change `after`; say what is asked for."""
    delivered = after.select("orders", user_id=user["id"], status="delivered")
    order = draw.choice(delivered)
    line = draw.choice(after.select("order_lines", order_id=order["id"]))
    name, month = after.get("products", id=line["product_id"])["name"], order["placed_on"][:7]
    if draw.difficulty == 5:
        text = f"Request the return of every product of every delivered order that was placed in {month}."
        asked = (month, "", _ALL)
        delivered = [past for past in delivered if past["placed_on"].startswith(month)]
    elif draw.difficulty == 4:
        text, asked = f"Request the return of {name} from every delivered order that holds it.", ("", name, _ALL)
    else:
        text = f"Request the return of {name} from the latest delivered order that holds it."
        asked = ("", name, 1)
    bought = [
        (past["id"], row["product_id"])
        for past in delivered
        for row in after.select("order_lines", order_id=past["id"])
        if draw.difficulty == 5 or row["product_id"] == line["product_id"]
    ]
    for order_id, product_id in bought[-1:] if draw.difficulty == 3 else bought:
        after.add("returns", order_id=order_id, product_id=product_id, reason=reason)
    return text, asked


_SOLVE = """\
for order in list(site.rows("/orders")):
    path = order["href"]
    if not order["Placed on"].startswith(DAY):
        continue
    if CANCEL:
        site.submit(path, path + "/cancel", reason=REASON)
    elif order["Status"] == "delivered":
        page = Page(site.get(path))
        numbers = [fields["product"] for action, fields in page.forms if action == path + "/return"]
        for row, number in zip(page.rows, numbers):
            if PRODUCT in row["Product"] and MOST:
                MOST -= 1
                site.submit(path, path + "/return", product=number, reason=REASON)
"""

RETURN: Final = Family(
    name="website-return",
    suite="website",
    make=_make,
    levels=(
        "cancel an order by number",
        "cancel an order by day, of 10",
        "return a product of its latest order, of 18",
        "return a product of all orders, of 26",
        "return all products of a month, of 42 orders",
    ),
)
