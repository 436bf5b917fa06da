"""What a customer does with an account and with orders already placed. Travels into the image of a task."""

from __future__ import annotations

from muster_suites.service.http import Refusal, Response
from muster_suites.service.store import Row
from muster_suites.website.shop.checkout import address, address_fields
from muster_suites.website.shop.pages import Html, element, field, hidden, link, money, select, table
from muster_suites.website.shop.visit import Route, Visit

REASONS = ("too late", "wrong product", "damaged", "not needed any more")


def _account(visit: Visit) -> Response:
    user = visit.user
    fields = [
        field("Name", "name", user["name"]),
        field("E-mail", "email", user["email"]),
        *address_fields(user),
        select("Newsletter", "newsletter", ("yes", "no"), user["newsletter"]),
    ]
    about = element("p", f"You are {user['login']}.")
    return visit.page("Account", about, visit.form("/account", fields, "Save"), visit.form("/logout", [], "Log out"))


def _save_account(visit: Visit) -> Response:
    name, email = visit.field("name"), visit.field("email")
    if email.count("@") != 1:
        raise Refusal(422, "That is no e-mail address.")
    newsletter = visit.option("newsletter", ("yes", "no"))
    visit.store.run(
        "UPDATE users SET name = ?, email = ?, newsletter = ?, street = ?, city = ?, zip = ? WHERE id = ?",
        *(name, email, newsletter, *address(visit), visit.user["id"]),
    )
    return visit.done("Your account is saved.", "/account")


def _orders(visit: Visit) -> Response:
    rows = visit.store.all("SELECT * FROM orders WHERE user_id = ? ORDER BY id DESC", visit.user["id"])

    def show(here: list[Row]) -> Html:
        return table(
            ("Order", "Placed on", "Status", "Total", "Shipped to"),
            (
                (link(f"/orders/{r['id']}", r["id"]), r["placed_on"], r["status"], money(r["total_cents"]), r["city"])
                for r in here
            ),
        )

    return visit.listing("Orders", rows, show)


def _own(visit: Visit) -> Row:
    """The order of the path, if it is the visitor's own."""
    row = visit.store.one("SELECT * FROM orders WHERE id = ? AND user_id = ?", visit.number, visit.user["id"])
    return visit.found(row, "order of yours")


def _order(visit: Visit) -> Response:
    order = _own(visit)
    lines = visit.store.all(
        "SELECT * FROM order_lines JOIN products ON id = product_id WHERE order_id = ? ORDER BY id", order["id"]
    )
    returned = {
        r["product_id"]: r["reason"] for r in visit.store.all("SELECT * FROM returns WHERE order_id = ?", order["id"])
    }
    rows: list[tuple[object, ...]] = []
    for line in lines:
        state: object = ""
        if line["product_id"] in returned:
            state = f"return requested: {returned[line['product_id']]}"
        elif order["status"] == "delivered":
            fields = [hidden("product", line["product_id"]), select("Reason", "reason", REASONS)]
            state = visit.form(f"/orders/{order['id']}/return", fields, "Return")
        rows.append((line["name"], line["quantity"], money(line["price_cents"]), state))
    about = (
        f"Placed on {order['placed_on']}. Status: {order['status']}. Coupon: {order['coupon'] or 'none'}. Total: "
        f"{money(order['total_cents'])}. Ships to {order['street']}, {order['zip']} {order['city']}."
    )
    parts: list[object] = [element("p", about), table(("Product", "Quantity", "Price", ""), rows)]
    if order["status"] == "placed":
        parts.append(visit.form(f"/orders/{order['id']}/address", address_fields(order), "Change the address"))
        parts.append(visit.form(f"/orders/{order['id']}/cancel", [select("Reason", "reason", REASONS)], "Cancel"))
    return visit.page(f"Order {order['id']}", *parts)


def _cancel(visit: Visit) -> Response:
    order, reason = _own(visit), visit.option("reason", REASONS)
    _must_be(order, "placed")
    visit.store.run("UPDATE orders SET status = 'cancelled', reason = ? WHERE id = ?", reason, order["id"])
    for line in visit.store.all("SELECT * FROM order_lines WHERE order_id = ?", order["id"]):
        visit.store.run("UPDATE products SET stock = stock + ? WHERE id = ?", line["quantity"], line["product_id"])
    return visit.done(f"Order {order['id']} is cancelled.", f"/orders/{order['id']}")


def _readdress(visit: Visit) -> Response:
    order = _own(visit)
    _must_be(order, "placed")
    visit.store.run("UPDATE orders SET street = ?, city = ?, zip = ? WHERE id = ?", *address(visit), order["id"])
    return visit.done(f"Order {order['id']} goes to its new address.", f"/orders/{order['id']}")


def _return(visit: Visit) -> Response:
    order, product, reason = _own(visit), visit.count("product", high=999_999), visit.option("reason", REASONS)
    _must_be(order, "delivered")
    line = visit.store.one("SELECT * FROM order_lines WHERE order_id = ? AND product_id = ?", order["id"], product)
    visit.found(line, "product in this order")
    if visit.store.one("SELECT id FROM returns WHERE order_id = ? AND product_id = ?", order["id"], product):
        raise Refusal(409, "Its return is requested already.")
    visit.store.run("INSERT INTO returns (order_id, product_id, reason) VALUES (?, ?, ?)", order["id"], product, reason)
    return visit.done("The return is requested.", f"/orders/{order['id']}")


def _must_be(order: Row, status: str) -> None:
    if order["status"] != status:
        raise Refusal(409, f"That needs an order that is {status}; this one is {order['status']}.")


ROUTES = (
    Route("GET", "/account", _account),
    Route("POST", "/account", _save_account),
    Route("GET", "/orders", _orders),
    Route("GET", r"/orders/(\d{1,6})", _order),
    Route("POST", r"/orders/(\d{1,6})/cancel", _cancel),
    Route("POST", r"/orders/(\d{1,6})/address", _readdress),
    Route("POST", r"/orders/(\d{1,6})/return", _return),
)
