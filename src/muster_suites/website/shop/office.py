"""What the shop's staff does: prices and stock, reviews, tickets. Travels into the image of a task."""

from __future__ import annotations

import re

from muster_suites.service.http import Refusal, Response
from muster_suites.service.store import Row
from muster_suites.website.shop.catalogue import product_rows, search_form
from muster_suites.website.shop.pages import Html, element, field, link, money, select, table
from muster_suites.website.shop.visit import STAFF, Route, Visit

REMOVALS = ("contact data", "advertising", "shouting", "insult", "not about the product")
QUEUES = ("shipping", "billing", "returns", "products")
ANSWERS = ("on its way", "money back", "please send a photo", "not in stock", "passed on")


def _products(visit: Visit) -> Response:
    def show(rows: list[Row]) -> Html:
        return table(
            ("SKU", "Product", "Category", "Price", "In stock"),
            (
                (
                    r["sku"],
                    link(f"/office/products/{r['id']}", r["name"]),
                    r["category"],
                    money(r["price_cents"]),
                    r["stock"],
                )
                for r in rows
            ),
        )

    return visit.listing("Products", product_rows(visit), show, search_form(visit, "/office/products"))


def _product(visit: Visit) -> Response:
    row = visit.found(visit.store.one("SELECT * FROM products WHERE id = ?", visit.number), "product")
    fields = [field("Price", "price", money(row["price_cents"])), field("In stock", "stock", row["stock"])]
    about = element("p", f"SKU {row['sku']}, category {row['category']}.")
    return visit.page(row["name"], about, visit.form(f"/office/products/{row['id']}", fields, "Save"))


def _save_product(visit: Visit) -> Response:
    row = visit.found(visit.store.one("SELECT * FROM products WHERE id = ?", visit.number), "product")
    price, stock = visit.field("price"), visit.count("stock", low=0, high=999_999)
    if not re.fullmatch(r"\d{1,6}\.\d\d", price):
        raise Refusal(422, "The price must be written as 12.50: with a point and two digits behind it.")
    cents = int(price.replace(".", ""))
    visit.store.run("UPDATE products SET price_cents = ?, stock = ? WHERE id = ?", cents, stock, row["id"])
    return visit.done(f"{row['name']} is saved.", "/office/products")


def _reviews(visit: Visit) -> Response:
    status = visit.request.query.get("status", "pending")
    sql = "SELECT reviews.*, name FROM reviews JOIN products ON products.id = product_id WHERE status = ? ORDER BY id"

    def show(rows: list[Row]) -> Html:
        return table(
            ("Review", "Product", "Stars", "Author", "Text"),
            (
                (link(f"/office/reviews/{r['id']}", r["id"]), r["name"], r["stars"], r["author"], r["text"])
                for r in rows
            ),
        )

    others = [link(f"/office/reviews?status={name}", name) for name in ("pending", "published", "removed")]
    return visit.listing(f"Reviews: {status}", visit.store.all(sql, status), show, *others)


def _review(visit: Visit) -> Response:
    row = visit.found(visit.store.one("SELECT * FROM reviews WHERE id = ?", visit.number), "review")
    fields = [select("Decision", "decision", ("publish", "remove")), select("Reason", "reason", ("", *REMOVALS))]
    return visit.page(
        f"Review {row['id']}",
        element("p", f"{row['author']} ({row['stars']}/5): {row['text']}"),
        element("p", f"Status: {row['status']}. {row['reason']}"),
        visit.form(f"/office/reviews/{row['id']}", fields, "Decide"),
    )


def _decide(visit: Visit) -> Response:
    row = visit.found(visit.store.one("SELECT * FROM reviews WHERE id = ?", visit.number), "review")
    status, reason = "published", ""
    if visit.option("decision", ("publish", "remove")) == "remove":
        status, reason = "removed", visit.option("reason", REMOVALS)
    visit.store.run("UPDATE reviews SET status = ?, reason = ? WHERE id = ?", status, reason, row["id"])
    return visit.done(f"Review {row['id']} is {status}.", "/office/reviews")


def _tickets(visit: Visit) -> Response:
    status = visit.request.query.get("status", "open")

    def show(rows: list[Row]) -> Html:
        return table(
            ("Ticket", "Subject", "Order", "Queue"),
            (
                (link(f"/office/tickets/{r['id']}", r["id"]), r["subject"], r["order_id"] or "", r["queue"])
                for r in rows
            ),
        )

    others = [link(f"/office/tickets?status={name}", name) for name in ("open", "closed")]
    rows = visit.store.all("SELECT * FROM tickets WHERE status = ? ORDER BY id", status)
    return visit.listing(f"Tickets: {status}", rows, show, *others)


def _ticket(visit: Visit) -> Response:
    row = visit.found(visit.store.one("SELECT * FROM tickets WHERE id = ?", visit.number), "ticket")
    order = visit.store.one("SELECT * FROM orders WHERE id = ?", row["order_id"])
    parts: list[object] = [element("p", row["body"])]
    if order is not None:
        about = (
            f"Order {order['id']}: placed on {order['placed_on']}, {order['status']}, {money(order['total_cents'])}."
        )
        parts.append(element("p", about))
    fields = [
        select("Queue", "queue", QUEUES, row["queue"]),
        select("Answer", "answer", ANSWERS, row["answer"]),
        select("Status", "status", ("open", "closed"), row["status"]),
    ]
    parts.append(visit.form(f"/office/tickets/{row['id']}", fields, "Save"))
    return visit.page(f"Ticket {row['id']}: {row['subject']}", *parts)


def _save_ticket(visit: Visit) -> Response:
    row = visit.found(visit.store.one("SELECT * FROM tickets WHERE id = ?", visit.number), "ticket")
    visit.store.run(
        "UPDATE tickets SET queue = ?, answer = ?, status = ? WHERE id = ?",
        *(visit.option("queue", QUEUES), visit.option("answer", ANSWERS)),
        *(visit.option("status", ("open", "closed")), row["id"]),
    )
    return visit.done(f"Ticket {row['id']} is saved.", "/office/tickets")


ROUTES = (
    Route("GET", "/office/products", _products, STAFF),
    Route("GET", r"/office/products/(\d{1,6})", _product, STAFF),
    Route("POST", r"/office/products/(\d{1,6})", _save_product, STAFF),
    Route("GET", "/office/reviews", _reviews, STAFF),
    Route("GET", r"/office/reviews/(\d{1,6})", _review, STAFF),
    Route("POST", r"/office/reviews/(\d{1,6})", _decide, STAFF),
    Route("GET", "/office/tickets", _tickets, STAFF),
    Route("GET", r"/office/tickets/(\d{1,6})", _ticket, STAFF),
    Route("POST", r"/office/tickets/(\d{1,6})", _save_ticket, STAFF),
)
