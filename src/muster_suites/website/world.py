"""The shop of one instance: its rows, and what families change in a copy of them.

Law: pure data; a day or a price never comes from a clock. What the shop's own handlers compute (totals, stock) is
computed here a second time, from the rules of the instruction alone, so that neither can hide the other's mistake.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from muster_suites.frame import Draw
from muster_suites.service.store import Row, digest
from muster_suites.service.task import Program
from muster_suites.website.shop.schema import SCHEMA

PROGRAM: Final = Program(
    name="shop",
    schema=SCHEMA,
    modules=tuple(
        f"muster_suites.website.shop.{name}"
        for name in ("server", "account", "catalogue", "checkout", "office", "pages", "schema", "visit", "workshops")
    ),
    client=Path(__file__).with_name("client.py").read_text("utf-8"),
)
DESCRIPTIONS: Final = (
    "Made by hand.",
    "Comes in a box.",
    "For daily use.",
    "A small one.",
    "With two years of warranty.",
)


class Shop:
    """Rows by table, with builders. `today` is fixed for an instance."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self.today = date(2031, 3, 1) + timedelta(days=draw.number(0, 200))
        self.name = f"{draw.word().title()} Shop"
        self.categories = draw.words(draw.at(2, 2, 3, 4, 4))
        self.rows: dict[str, list[Row]] = {}
        self.secret = draw.hexadecimal(32)
        self.passwords: dict[str, str] = {}

    def copy(self) -> Shop:
        """The same shop, whose rows may be changed apart from these."""
        other = copy.copy(self)
        other.rows = copy.deepcopy(self.rows)
        return other

    @property
    def settings(self) -> dict[str, str]:
        return {"shop": self.name, "today": self.today.isoformat(), "secret": self.secret}

    def table(self, name: str) -> list[Row]:
        return self.rows.setdefault(name, [])

    def add(self, table: str, **row: object) -> Row:
        """Give it the next number, unless the table has none of its own."""
        rows = self.table(table)
        if table not in ("documents", "coupons", "carts", "order_lines", "wishes"):
            row = {"id": len(rows) + 1, **row}
        rows.append(row)
        return row

    def get(self, table: str, **match: object) -> Row:
        """The one row with these values."""
        (row,) = self.select(table, **match)
        return row

    def select(self, table: str, **match: object) -> list[Row]:
        return [row for row in self.table(table) if all(row[key] == value for key, value in match.items())]

    # --- content ------------------------------------------------------------------------------------------

    def stock_up(self, count: int) -> None:
        """`count` products, each with a name and a price of its own."""
        draw = self._draw
        for price in draw.sample(range(20, 900), count):
            self.add(
                "products",
                sku=f"{draw.choice('ABCDEFGH')}{draw.hexadecimal(2).upper()}-{len(self.table('products')) + 100}",
                name=draw.pair(" ").title(),
                category=draw.choice(self.categories),
                description=draw.choice(DESCRIPTIONS),
                price_cents=price * 10 + 5,
                stock=draw.number(6, 60),
            )

    def user(self, *, role: str = "customer", last_name: str = "") -> Row:
        draw = self._draw
        name = ""
        while not name or self.select("users", name=name):
            first, last = draw.pair(" ").title().split()
            name = f"{first} {last_name or last}"
        login = f"{name.split()[0]}{len(self.table('users')) + 1}".lower()
        self.passwords[login] = draw.hexadecimal(8)
        return self.add(
            "users",
            login=login,
            password=digest(login, self.passwords[login]),
            role=role,
            name=name,
            email=f"{login}@example.com",
            **self.place(),
            newsletter=draw.choice(("yes", "no")),
        )

    def place(self) -> dict[str, str]:
        draw = self._draw
        return {
            "street": f"{draw.number(1, 99)} {draw.pair(' ').title()} Road",
            "city": draw.pair("").title(),
            "zip": f"{draw.number(10_000, 99_999)}",
        }

    def login_of(self, user: Row) -> str:
        return f"user name {user['login']}, password {self.passwords[user['login']]}"

    def day(self, back: int) -> str:
        """ISO date, that many days ago."""
        return (self.today - timedelta(days=back)).isoformat()

    def order(self, user: Row, *, back: int, status: str, lines: Iterable[tuple[Row, int]], **more: object) -> Row:
        """An order of the past: its stock left long ago."""
        chosen = list(lines)
        home = {key: user[key] for key in ("street", "city", "zip")}
        total = sum(product["price_cents"] * quantity for product, quantity in chosen)
        order = self.add(
            "orders",
            **{
                "user_id": user["id"],
                "placed_on": self.day(back),
                "status": status,
                "total_cents": total,
                **home,
                **more,
            },
        )
        for product, quantity in chosen:
            self.add(
                "order_lines",
                order_id=order["id"],
                product_id=product["id"],
                quantity=quantity,
                price_cents=product["price_cents"],
            )
        return order

    def history(self, user: Row, count: int, *, step_days: int = 9) -> None:
        """`count` orders of the past, oldest first; only the last ones are still on their way."""
        draw = self._draw
        for number in range(count, 0, -1):
            status = "delivered" if number > 3 else "shipped"
            lines = [(product, draw.number(1, 3)) for product in draw.sample(self.table("products"), draw.number(1, 3))]
            self.order(user, back=number * step_days + draw.number(0, 4), status=status, lines=lines)


def place_order(shop: Shop, user: Row, lines: list[tuple[Row, int]], *, coupon: str, discount: int, to: Row) -> None:
    """Place an order, with all that a checkout leaves behind."""
    order = shop.order(
        user, back=0, status="placed", lines=lines, coupon=coupon, **{key: to[key] for key in ("street", "city", "zip")}
    )
    order["total_cents"] -= discount
    for product, quantity in lines:
        shop.get("products", id=product["id"])["stock"] -= quantity
