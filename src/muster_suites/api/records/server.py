"""The records service: who may call, how fast, and which function answers.

    Request ─► token ─► pace of writing ─► route ─► answer, remembered by its Idempotency-Key
                401         429            404/405

Law: everything but the pace is counted in requests, never in time, so that an attempt can be played again. A write is
committed before its answer leaves; an answer that is then lost (503, when the instance says so) has happened all the
same. This module travels into the image of a task.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from muster_suites.api.records import jobs, ledger, rows
from muster_suites.api.records.call import JSON, Call, answer, refusal
from muster_suites.api.records.manual import MANUAL
from muster_suites.api.records.schema import SCHEMA
from muster_suites.service import http, store
from muster_suites.service.http import Refusal, Request, Response
from muster_suites.service.store import Store, digest

PAUSE_S = 1


class Route(NamedTuple):
    """`pattern` matches the whole path."""

    method: str
    pattern: str
    handle: Callable[[Call], Response]


ROUTES = (
    Route("GET", "/v1/transfers", ledger.transfers),
    Route("POST", "/v1/transfers", ledger.transfer),
    Route("POST", "/v1/batches", ledger.batch),
    Route("POST", "/v1/lookups", jobs.start),
    Route("GET", r"/v1/jobs/(\d{1,9})", jobs.ask),
    Route("GET", r"/v1/([a-z]+)", rows.listing),
    Route("POST", r"/v1/([a-z]+)", rows.create),
    Route("GET", r"/v1/([a-z]+)/(\d{1,9})", rows.read),
    Route("PATCH", r"/v1/([a-z]+)/(\d{1,9})", rows.change),
    Route("DELETE", r"/v1/([a-z]+)/(\d{1,9})", rows.delete),
)


class Pace:
    """`burst` writes may follow each other; the next one is refused, and all others until `pause_s` after that."""

    def __init__(self, burst: int, pause_s: float = PAUSE_S) -> None:
        self._burst = burst
        self._pause_s = pause_s
        self._left = burst
        self._pausing = False

    def admit(self) -> bool:
        if self._left > 0:
            self._left -= 1
            return True
        if not self._pausing:
            self._pausing = True
            timer = threading.Timer(self._pause_s, self._resume)
            timer.daemon = True
            timer.start()
        return False

    def _resume(self) -> None:
        self._left, self._pausing = self._burst, False


class Service:
    """Answers one request at a time. Settings: burst, lose_every, token_uses (0: never), client_id, client_secret."""

    def __init__(self, state: Store) -> None:
        self._store = state
        self._pace = Pace(int(state.setting("burst")) or 1 << 30)
        self._lose_every = int(state.setting("lose_every"))
        self._posts = 0

    def __call__(self, request: Request) -> Response:
        with self._store.lock:
            try:
                return self._answer(request)
            except Refusal as refused:
                return Response(refused.status, refused.message.encode() + b"\n", JSON, refused.headers)

    def _answer(self, request: Request) -> Response:
        if request.method == "GET" and request.path in ("/", "/v1", "/health"):
            return Response(200, MANUAL.encode(), "text/plain; charset=utf-8")
        if request.path == "/v1/token":
            return self._token(request)
        self._authorise(request)
        call, route = _routed(Call(self._store, request))
        if request.method == "GET":
            return route.handle(call)
        key = request.headers.get("idempotency-key", "")
        said = self._said(request, key)
        if said is not None:
            return said
        if not self._pace.admit():
            raise refusal(429, "too_fast", "Too many changes: wait, then send it again.", ("Retry-After", str(PAUSE_S)))
        with self._store.changing(request.method, request.path):
            response = route.handle(call)
            if key and request.method == "POST":
                asked = digest(request.path, request.body)
                self._store.run(
                    "INSERT INTO answers VALUES (?, ?, ?, ?)", key, asked, response.status, response.body.decode()
                )
        return self._lost(request) or response

    def _token(self, request: Request) -> Response:
        if request.method != "POST":
            raise refusal(405, "not_allowed", "POST client_id and client_secret as JSON.")
        data = Call(self._store, request).data()
        if any(data.get(name) != self._store.setting(name) for name in ("client_id", "client_secret")):
            raise refusal(403, "wrong_secret", "client_id and client_secret do not match.")
        count = self._store.value("SELECT count(*) FROM sessions")
        token = digest(self._store.setting("secret"), "token", count)
        uses = int(self._store.setting("token_uses"))
        self._store.run("INSERT INTO sessions (token, uses) VALUES (?, ?)", token, uses or 1 << 30)
        return answer(201, {"access_token": token, "good_for_requests": uses or None})

    def _authorise(self, request: Request) -> None:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        uses = self._store.value("SELECT uses FROM sessions WHERE token = ?", token.strip())
        ask = ("WWW-Authenticate", "Bearer")
        if kind.lower() != "bearer" or uses is None:
            raise refusal(401, "no_token", "Send Authorization: Bearer TOKEN with a token of POST /v1/token.", ask)
        if uses < 1:
            raise refusal(401, "token_expired", "This token is used up: get another one.", ask)
        self._store.run("UPDATE sessions SET uses = uses - 1 WHERE token = ?", token.strip())

    def _said(self, request: Request, key: str) -> Response | None:
        """The answer that this key has had already."""
        row = self._store.one("SELECT * FROM answers WHERE key = ?", key) if request.method == "POST" else None
        if row is None:
            return None
        if row["asked"] != digest(request.path, request.body):
            raise refusal(422, "key_reused", "This Idempotency-Key was sent with another request.")
        return answer(row["status"], json.loads(row["body"]), ("Idempotent-Replay", "true"))

    def _lost(self, request: Request) -> Response | None:
        if request.method != "POST" or not self._lose_every:
            return None
        self._posts += 1
        if self._posts % self._lose_every:
            return None
        message = "The answer was lost: whether the change was made is not known."
        return answer(503, {"error": "lost", "message": message}, ("Retry-After", "0"))


def _routed(call: Call) -> tuple[Call, Route]:
    known = False
    for route in ROUTES:
        match = re.fullmatch(route.pattern, call.request.path)
        if match and route.method == call.request.method:
            return call._replace(arguments=match.groups()), route
        known = known or match is not None
    raise refusal(405 if known else 404, "not_found", "GET /v1 says what there is.")


def main(home: Path) -> None:
    """Serve the records whose files lie in `home`; what follows on the command line is run beside it."""
    database = home / "service.db"
    http.main(
        home,
        lambda: store.create(database, SCHEMA, home / "seed.json"),
        lambda: Service(Store(database)),
        sys.argv[1:],
    )
