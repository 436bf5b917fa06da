"""The shop: sessions, log-in, routes.

    Request ─► session by cookie ─► route by method and path ─► role, CSRF token ─► handler ─► page, or 303 after a POST

Law: every form carries the CSRF token of its session; a handler sees one visitor only; what one request changes is
committed before the answer leaves, or, when it is refused, taken back. This module travels into the image of a task.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from muster_suites.service import http, store
from muster_suites.service.http import Refusal, Request, Response
from muster_suites.service.store import Row, Store, digest
from muster_suites.website.shop import account, catalogue, checkout, office, workshops
from muster_suites.website.shop.pages import element, field
from muster_suites.website.shop.schema import SCHEMA
from muster_suites.website.shop.visit import PUBLIC, Route, Visit


def _welcome(visit: Visit) -> Response:
    return visit.page(visit.store.setting("shop"), element("p", f"Today is {visit.store.setting('today')}."))


def _document(visit: Visit) -> Response:
    found = visit.store.one("SELECT * FROM documents WHERE name = ?", visit.arguments[0])
    row = visit.found(found, "page")
    return visit.page(row["title"], element("pre", row["text"]))


def _login_form(visit: Visit) -> Response:
    """The session begins here, without a user, so that this form has a CSRF token as well."""
    session = visit.session
    cookies: tuple[tuple[str, str], ...] = ()
    if not session:
        secret, count = visit.store.setting("secret"), visit.store.value("SELECT count(*) FROM sessions")
        session = {"token": digest(secret, "session", count), "csrf": digest(secret, "form", count), "user_id": None}
        visit.store.run("INSERT INTO sessions (token, csrf) VALUES (?, ?)", session["token"], session["csrf"])
        cookies = (("Set-Cookie", f"session={session['token']}; Path=/; HttpOnly; SameSite=Strict"),)
    visit = visit._replace(session=session)
    fields = [field("User name", "login"), field("Password", "password")]
    return visit.page("Log in", visit.form("/login", fields, "Log in"))._replace(headers=cookies)


def _login(visit: Visit) -> Response:
    login, password = visit.field("login"), visit.field("password")
    user = visit.store.one("SELECT * FROM users WHERE login = ? AND password = ?", login, digest(login, password))
    if user is None:
        raise Refusal(403, "User name and password do not match.")
    visit.store.run("UPDATE sessions SET user_id = ? WHERE token = ?", user["id"], visit.session["token"])
    return visit.done(f"Welcome, {user['name']}.", "/account" if user["role"] == "customer" else "/office/products")


def _logout(visit: Visit) -> Response:
    visit.store.run("UPDATE sessions SET user_id = NULL WHERE token = ?", visit.session["token"])
    return visit.done("Good bye.", "/login")


_OWN = (
    Route("GET", "/", _welcome, PUBLIC),
    Route("GET", "/health", _welcome, PUBLIC),
    Route("GET", r"/pages/([\w-]+)", _document, PUBLIC),
    Route("GET", "/login", _login_form, PUBLIC),
    Route("POST", "/login", _login, PUBLIC),
    Route("POST", "/logout", _logout, PUBLIC),
)
ROUTES = (*_OWN, *catalogue.ROUTES, *checkout.ROUTES, *account.ROUTES, *workshops.ROUTES, *office.ROUTES)


class Site:
    """Answers one request at a time. Example: `Site(Store(path))(Request("GET", "/", {}, {})).status`."""

    def __init__(self, state: Store) -> None:
        self._store = state

    def __call__(self, request: Request) -> Response:
        visit = Visit(self._store, request, {}, {})
        with self._store.lock:
            try:
                session = self._session(request)
                visit = visit._replace(session=session, user=self._user(session))
                route, arguments = _routed(request)
                visit = visit._replace(arguments=arguments)
                _permit(visit, route)
                if request.method == "GET":
                    return route.handle(visit)
                with self._store.changing(request.method, request.path):
                    return route.handle(visit)
            except Refusal as refusal:
                parts = [element("p", refusal.message, class_="error")]
                return visit.page("That did not work", *parts, status=refusal.status)._replace(headers=refusal.headers)

    def _session(self, request: Request) -> Row:
        token = request.cookies.get("session", "")
        return self._store.one("SELECT * FROM sessions WHERE token = ?", token) or {}

    def _user(self, session: Row) -> Row:
        return self._store.one("SELECT * FROM users WHERE id = ?", session.get("user_id")) or {}


def _routed(request: Request) -> tuple[Route, tuple[str, ...]]:
    known = False
    for route in ROUTES:
        match = re.fullmatch(route.pattern, request.path)
        if match and route.method == request.method:
            return route, match.groups()
        known = known or match is not None
    raise Refusal(405 if known else 404, "There is no such page." if not known else "This page has no such form.")


def _permit(visit: Visit, route: Route) -> None:
    if route.role != PUBLIC and not visit.user:
        raise Refusal(303, "Log in first.", (("Location", "/login"),))
    if route.role not in (PUBLIC, visit.user.get("role")):
        raise Refusal(403, f"Only {route.role} accounts may see this.")
    if visit.request.method == "POST" and visit.request.form.get("csrf", "") != visit.session.get("csrf"):
        raise Refusal(403, "This form is not valid: load its page again and send all of its fields.")


def main(home: Path) -> None:
    """Serve the shop whose files lie in `home`; what follows on the command line is run beside it."""
    database = home / "service.db"
    http.main(
        home,
        lambda: store.create(database, SCHEMA, home / "seed.json"),
        lambda: Site(Store(database)),
        sys.argv[1:],
    )
