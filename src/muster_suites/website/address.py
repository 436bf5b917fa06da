"""Move an account to another address: whose account it is has to be found first."""

from __future__ import annotations

from typing import Final

from muster_suites.frame import Draw, Family, Instance
from muster_suites.service.store import Row
from muster_suites.website.task import task
from muster_suites.website.world import Shop

_STATES: Final = ("placed", "placed", "shipped", "delivered")


def _make(draw: Draw) -> Instance:
    shop = Shop(draw)
    shop.stock_up(8)
    family_name = draw.word().title()
    users = [shop.user(last_name=family_name) for _ in range(draw.at(1, 2, 4, 6, 8))]
    user = draw.choice(users)
    for one in users:
        for status in draw.sample(_STATES, draw.number(2, 4)):
            shop.order(one, back=draw.number(1, 40), status=status, lines=[(draw.choice(shop.table("products")), 1)])
    open_order = shop.order(user, back=1, status="placed", lines=[(draw.choice(shop.table("products")), 2)])
    after, new = shop.copy(), shop.place()
    changed: Row = dict(new) if draw.difficulty > 1 else {"street": new["street"]}
    if draw.difficulty >= 3:
        changed["newsletter"] = "no" if user["newsletter"] == "yes" else "yes"
    after.get("users", id=user["id"]).update(changed)
    if draw.difficulty >= 4:
        for order in after.select("orders", user_id=user["id"], status="placed"):
            order.update(new)
    accounts = [f"{one['login']},{shop.passwords[one['login']]}\n" for one in draw.shuffled(users)]
    return task(
        shop,
        after,
        text=" ".join([_who(draw, shop, user, open_order), *_what(draw, user, new)]),
        user=user if draw.difficulty == 1 else None,
        solve=_SOLVE,
        values={
            "NAME": user["name"],
            "ORDER": open_order["id"] if draw.difficulty == 5 else None,
            "SEARCH": draw.difficulty > 1,
            "CHANGED": {"newsletter": user["newsletter"], **changed},
            "ORDERS_TO": new if draw.difficulty >= 4 else None,
        },
        max_turns=draw.at(8, 10, 14, 20, 28),
        materials={"accounts.csv": "".join(["user name,password\n", *accounts])} if draw.difficulty > 1 else {},
    )


def _who(draw: Draw, shop: Shop, user: Row, order: Row) -> str:
    if draw.difficulty == 1:
        return f"Log in as a customer ({shop.login_of(user)})."
    accounts = "The file /app/accounts.csv holds user names and passwords."
    if draw.difficulty == 5:
        return f"{accounts} Find the account that has the order {order['id']}."
    return f"{accounts} Find the account of {user['name']}."


def _what(draw: Draw, user: Row, new: Row) -> list[str]:
    if draw.difficulty == 1:
        return [f"Change the street of the account to {new['street']}."]
    said = [f"Change the address of the account to {new['street']}, {new['zip']} {new['city']}."]
    if draw.difficulty >= 3:
        said.append(f"Turn the newsletter {'off' if user['newsletter'] == 'yes' else 'on'}.")
    if draw.difficulty >= 4:
        said.append("All orders of this account that can still be readdressed must go to the new address as well.")
    return said


_SOLVE = """\
import csv

for login, password in list(csv.reader(lines("/app/accounts.csv")))[1:] if SEARCH else ():
    site.log_out()
    site.login(login, password)
    orders = [row["Order"] for row in site.rows("/orders")]
    if str(ORDER) in orders if ORDER else f'value="{NAME}"' in site.get("/account"):
        break
site.submit("/account", "/account", **CHANGED)
for order in list(site.rows("/orders")):
    if ORDERS_TO and order["Status"] == "placed":
        site.submit(order["href"], order["href"] + "/address", **ORDERS_TO)
"""

ADDRESS: Final = Family(
    name="website-address",
    suite="website",
    make=_make,
    levels=(
        "the street of one account",
        "the whole address; whose account is found in a file",
        "and the newsletter; four accounts of one family",
        "and the open orders of the account",
        "eight accounts; the right one is found by an order",
    ),
)
