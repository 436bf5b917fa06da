"""Products, deals and the wish list. Travels into the image of a task."""

from __future__ import annotations

from muster_suites.service.http import Response
from muster_suites.service.store import Row
from muster_suites.website.shop.pages import Html, element, field, hidden, link, money, select, table
from muster_suites.website.shop.visit import PUBLIC, Route, Visit

SORTS = {"name": "name, id", "price": "price_cents, id"}
PRIORITIES = ("1", "2", "3")


def product_rows(visit: Visit) -> list[Row]:
    """What `q` (every word of it, in name or description), `category` and `sort` ask for."""
    query = visit.request.query
    order = SORTS.get(query.get("sort", ""), "id")
    words = query.get("q", "").lower().split()
    return [
        row
        for row in visit.store.all(f"SELECT * FROM products ORDER BY {order}")
        if query.get("category", row["category"]) in ("", row["category"])
        and all(word in f"{row['name']} {row['description']}".lower() for word in words)
    ]


def search_form(visit: Visit, path: str) -> Html:
    categories = [row["category"] for row in visit.store.all("SELECT DISTINCT category FROM products ORDER BY 1")]
    query = visit.request.query
    fields = (
        field("Search", "q", query.get("q", "")),
        select("Category", "category", ["", *categories], query.get("category", "")),
        select("Sort by", "sort", ["", *SORTS], query.get("sort", "")),
    )
    inner = "\n".join((*fields, element("button", "Find")))
    return element("form", Html(inner), method="get", action=path)


def _products(visit: Visit) -> Response:
    def show(rows: list[Row]) -> Html:
        return table(
            ("Product", "Category", "Price", "In stock"),
            (
                (link(f"/products/{r['id']}", r["name"]), r["category"], money(r["price_cents"]), r["stock"])
                for r in rows
            ),
        )

    return visit.listing("Products", product_rows(visit), show, search_form(visit, "/products"))


def _product(visit: Visit) -> Response:
    row = visit.found(visit.store.one("SELECT * FROM products WHERE id = ?", visit.number), "product")
    names = (("SKU", row["sku"]), ("Category", row["category"]), ("Price", money(row["price_cents"])))
    parts: list[object] = [table((), (*names, ("In stock", row["stock"]))), element("p", row["description"])]
    reviews = visit.store.all(
        "SELECT * FROM reviews WHERE product_id = ? AND status = 'published' ORDER BY id", row["id"]
    )
    parts += [element("p", f"{r['author']} ({r['stars']}/5): {r['text']}", class_="review") for r in reviews]
    if visit.user.get("role") == "customer":
        chosen = hidden("product", row["id"])
        parts.append(visit.form("/cart/add", [chosen, field("Quantity", "quantity", 1)], "Add to cart"))
        parts.append(
            visit.form("/wishes/add", [chosen, select("Priority", "priority", PRIORITIES)], "Add to wish list")
        )
    return visit.page(row["name"], *parts)


def _deals(visit: Visit) -> Response:
    rows = visit.store.all("SELECT * FROM coupons ORDER BY code")
    listed = table(
        ("Code", "Discount", "Minimum order", "Only for", "Valid until (that day included)"),
        (
            (r["code"], f"{r['percent']} %", money(r["minimum_cents"]), r["category"] or "everything", r["valid_until"])
            for r in rows
        ),
    )
    rules = (
        f"Today is {visit.store.setting('today')}. One coupon per order. The minimum is that of the whole cart; a "
        "coupon for a category takes its discount off the products of that category alone."
    )
    return visit.page("Deals", element("p", rules), listed)


def _wishes(visit: Visit) -> Response:
    rows = visit.store.all(
        "SELECT * FROM wishes JOIN products ON id = product_id WHERE user_id = ? ORDER BY priority, product_id",
        visit.user["id"],
    )

    def show(here: list[Row]) -> Html:
        return table(("Product", "Price", "In stock", "Priority", "", ""), (_wish(visit, row) for row in here))

    return visit.listing("Wish list", rows, show)


def _wish(visit: Visit, row: Row) -> tuple[object, ...]:
    chosen = hidden("product", row["id"])
    priority = select("Priority", "priority", PRIORITIES, str(row["priority"]))
    return (
        link(f"/products/{row['id']}", row["name"]),
        money(row["price_cents"]),
        row["stock"],
        row["priority"],
        visit.form("/wishes/add", [chosen, priority], "Change"),
        visit.form("/wishes/remove", [chosen], "Remove"),
    )


def _add_wish(visit: Visit) -> Response:
    """Adds, or changes the priority of one that is there."""
    product, priority = visit.count("product", high=999_999), visit.option("priority", PRIORITIES)
    visit.found(visit.store.one("SELECT id FROM products WHERE id = ?", product), "product")
    visit.store.run(
        "INSERT INTO wishes VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET priority = excluded.priority",
        *(visit.user["id"], product, int(priority)),
    )
    return visit.done("The wish list is changed.", "/wishes")


def _remove_wish(visit: Visit) -> Response:
    product, user = visit.count("product", high=999_999), visit.user["id"]
    wish = visit.store.one("SELECT * FROM wishes WHERE user_id = ? AND product_id = ?", user, product)
    visit.found(wish, "wish")
    visit.store.run("DELETE FROM wishes WHERE user_id = ? AND product_id = ?", user, product)
    return visit.done("It is off the wish list.", "/wishes")


ROUTES = (
    Route("GET", "/products", _products, PUBLIC),
    Route("GET", r"/products/(\d{1,6})", _product, PUBLIC),
    Route("GET", "/deals", _deals, PUBLIC),
    Route("GET", "/wishes", _wishes),
    Route("POST", "/wishes/add", _add_wish),
    Route("POST", "/wishes/remove", _remove_wish),
)
