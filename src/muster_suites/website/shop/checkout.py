"""Cart and checkout: the only way to an order. Travels into the image of a task."""

from __future__ import annotations

import re

from muster_suites.service.http import Refusal, Response
from muster_suites.service.store import Row, digest
from muster_suites.website.shop.pages import element, field, hidden, link, money, table
from muster_suites.website.shop.visit import Route, Visit

_LINES = (
    "SELECT product_id, name, category, price_cents, stock, quantity FROM carts JOIN products ON id = product_id "
    "WHERE user_id = ? ORDER BY product_id"
)


def address(visit: Visit) -> tuple[str, str, str]:
    """Street, city and zip code of the form."""
    street, city, code = (visit.field(name) for name in ("street", "city", "zip"))
    if not re.fullmatch(r"\d{5}", code):
        raise Refusal(422, "The zip code must have five digits.")
    return street, city, code


def address_fields(row: Row) -> list[object]:
    labels = {"street": "Street", "city": "City", "zip": "Zip code"}
    return [field(label, name, row[name]) for name, label in labels.items()]


def _cart(visit: Visit) -> Response:
    lines = visit.store.all(_LINES, visit.user["id"])
    if not lines:
        return visit.page("Cart", element("p", "Your cart is empty."))
    rows = (
        (
            link(f"/products/{line['product_id']}", line["name"]),
            money(line["price_cents"]),
            visit.form(
                "/cart/change",
                [hidden("product", line["product_id"]), field("Quantity (0 removes)", "quantity", line["quantity"])],
                "Change",
            ),
        )
        for line in lines
    )
    total = element("p", f"Together {money(_subtotal(lines))}.")
    return visit.page("Cart", table(("Product", "Price", ""), rows), total, link("/checkout", "Check out"))


def _add(visit: Visit) -> Response:
    product, quantity = visit.count("product", high=999_999), visit.count("quantity")
    row = visit.found(visit.store.one("SELECT * FROM products WHERE id = ?", product), "product")
    there = visit.store.value(
        "SELECT quantity FROM carts WHERE user_id = ? AND product_id = ?", visit.user["id"], product
    )
    return _put(visit, row, quantity + (there or 0))


def _change(visit: Visit) -> Response:
    product, quantity = visit.count("product", high=999_999), visit.count("quantity", low=0)
    row = visit.found(visit.store.one("SELECT * FROM products WHERE id = ?", product), "product")
    return _put(visit, row, quantity)


def _put(visit: Visit, product: Row, quantity: int) -> Response:
    if quantity > product["stock"]:
        raise Refusal(422, f"Only {product['stock']} of {product['name']} are in stock.")
    visit.store.run("DELETE FROM carts WHERE user_id = ? AND product_id = ?", visit.user["id"], product["id"])
    if quantity:
        visit.store.run("INSERT INTO carts VALUES (?, ?, ?)", visit.user["id"], product["id"], quantity)
    return visit.done(f"Your cart holds {quantity} x {product['name']}.", "/cart")


def _checkout_form(visit: Visit) -> Response:
    lines = visit.store.all(_LINES, visit.user["id"])
    if not lines:
        raise Refusal(422, "Your cart is empty.")
    rows = ((line["name"], line["quantity"], money(line["price_cents"])) for line in lines)
    fields = [hidden("cart", _fingerprint(lines)), *address_fields(visit.user), field("Coupon code", "coupon")]
    return visit.page(
        "Check out",
        table(("Product", "Quantity", "Price"), rows),
        element("p", f"Together {money(_subtotal(lines))}."),
        visit.form("/checkout", fields, "Place the order"),
    )


def _place(visit: Visit) -> Response:
    lines = visit.store.all(_LINES, visit.user["id"])
    if not lines or visit.field("cart") != _fingerprint(lines):
        raise Refusal(409, "The cart has changed: load the checkout page again.")
    street, city, code = address(visit)
    coupon = visit.request.form.get("coupon", "").strip()
    total = _subtotal(lines) - (_discount(visit, coupon, lines) if coupon else 0)
    order = visit.store.run(
        "INSERT INTO orders (user_id, placed_on, status, coupon, total_cents, street, city, zip) "
        "VALUES (?, ?, 'placed', ?, ?, ?, ?, ?)",
        *(visit.user["id"], visit.store.setting("today"), coupon, total, street, city, code),
    )
    for line in lines:
        if line["quantity"] > line["stock"]:
            raise Refusal(422, f"Only {line['stock']} of {line['name']} are in stock.")
        sold = (order, line["product_id"], line["quantity"], line["price_cents"])
        visit.store.run("INSERT INTO order_lines VALUES (?, ?, ?, ?)", *sold)
        visit.store.run("UPDATE products SET stock = stock - ? WHERE id = ?", line["quantity"], line["product_id"])
    visit.store.run("DELETE FROM carts WHERE user_id = ?", visit.user["id"])
    return visit.done(f"Order {order} is placed. Its total is {money(total)}.", f"/orders/{order}")


def _discount(visit: Visit, code: str, lines: list[Row]) -> int:
    """In cents, rounded down."""
    coupon = visit.store.one("SELECT * FROM coupons WHERE code = ?", code)
    if coupon is None:
        raise Refusal(422, f"There is no coupon {code}.")
    if coupon["valid_until"] < visit.store.setting("today"):
        raise Refusal(422, f"The coupon {code} was valid until {coupon['valid_until']}.")
    if _subtotal(lines) < coupon["minimum_cents"]:
        raise Refusal(422, f"The coupon {code} needs a cart of at least {money(coupon['minimum_cents'])}.")
    eligible = [line for line in lines if coupon["category"] in ("", line["category"])]
    if not eligible:
        raise Refusal(422, f"The coupon {code} is for {coupon['category']} alone.")
    return _subtotal(eligible) * coupon["percent"] // 100


def _subtotal(lines: list[Row]) -> int:
    return sum(line["quantity"] * line["price_cents"] for line in lines)


def _fingerprint(lines: list[Row]) -> str:
    return digest(*((line["product_id"], line["quantity"], line["price_cents"]) for line in lines))


ROUTES = (
    Route("GET", "/cart", _cart),
    Route("POST", "/cart/add", _add),
    Route("POST", "/cart/change", _change),
    Route("GET", "/checkout", _checkout_form),
    Route("POST", "/checkout", _place),
)
