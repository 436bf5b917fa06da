"""One request to the shop, with who makes it. Handlers get a `Visit` and return a response.

This module travels into the image of a task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from muster_suites.service.http import Refusal, Request, Response
from muster_suites.service.store import Row, Store
from muster_suites.website.shop.pages import Html, document, element, form, joined, link, pager

PAGE_SIZE = 8
HTML = "text/html; charset=utf-8"

PUBLIC, CUSTOMER, STAFF = "public", "customer", "staff"
_MENU = {
    PUBLIC: (("/products", "Products"), ("/deals", "Deals"), ("/workshops", "Workshops"), ("/login", "Log in")),
    CUSTOMER: (
        ("/products", "Products"),
        ("/deals", "Deals"),
        ("/workshops", "Workshops"),
        ("/cart", "Cart"),
        ("/orders", "Orders"),
        ("/wishes", "Wish list"),
        ("/account", "Account"),
    ),
    STAFF: (("/office/products", "Products"), ("/office/reviews", "Reviews"), ("/office/tickets", "Tickets")),
}


class Visit(NamedTuple):
    """`arguments` are what the path's pattern matched; `user` is {} for someone who is not logged in."""

    store: Store
    request: Request
    session: Row
    user: Row
    arguments: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        """The number in the path."""
        return int(self.arguments[0])

    def field(self, name: str) -> str:
        """What the form says, without blanks around it. Refused when it says nothing."""
        value = self.request.form.get(name, "").strip()
        if not value:
            raise Refusal(422, f"The field {name} is missing.")
        return value

    def count(self, name: str, low: int = 1, high: int = 99) -> int:
        value = self.field(name)
        if not re.fullmatch(r"\d{1,6}", value) or not low <= int(value) <= high:
            raise Refusal(422, f"The field {name} must be a whole number from {low} to {high}.")
        return int(value)

    def option(self, name: str, options: Iterable[str]) -> str:
        value, known = self.field(name), tuple(options)
        if value not in known:
            raise Refusal(422, f"The field {name} must be one of: {', '.join(known)}.")
        return value

    def found(self, row: Row | None, what: str) -> Row:
        if row is None:
            raise Refusal(404, f"There is no such {what}.")
        return row

    def form(self, action: str, fields: Iterable[object], button: str) -> Html:
        return form(action, str(self.session["csrf"]), fields, button)

    def page(self, title: str, *parts: object, status: int = 200) -> Response:
        menu = _MENU[str(self.user.get("role", PUBLIC))]
        return Response(status, document(self.store.setting("shop"), title, menu, parts), HTML)

    def listing(self, title: str, rows: list[Row], show: Callable[[list[Row]], Html], *above: object) -> Response:
        """One page of `rows`, as `show` renders it."""
        pages = max(1, -(-len(rows) // PAGE_SIZE))
        asked = self.request.query.get("page", "1")
        if not asked.isdecimal() or not 1 <= int(asked) <= pages:
            raise Refusal(404, f"There is no page {asked}: there are {pages}.")
        here = rows[(int(asked) - 1) * PAGE_SIZE : int(asked) * PAGE_SIZE]
        return self.page(title, *above, show(here), pager(self.request.path, self.request.query, int(asked), pages))

    def done(self, message: str, location: str) -> Response:
        """After a change: see there. The body says it as well, for a client that does not follow."""
        body = document(
            self.store.setting("shop"), "Done", (), [element("p", joined([message, link(location, "Go on")], " "))]
        )
        return Response(303, body, HTML, (("Location", location),))


class Route(NamedTuple):
    """`pattern` matches the whole path; `role` is who may use it."""

    method: str
    pattern: str
    handle: Callable[[Visit], Response]
    role: str = CUSTOMER
