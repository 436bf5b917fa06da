"""HTTP for the generated services: a request in, one function, a response out.

    socket ─► Request ─► app(request) ─► Response, or the Refusal that it raised ─► socket

Law: an answer depends on the requests before it and on nothing else: no clock, no date header, no order of threads
(an app takes one request at a time). So a recorded attempt can be played again and compares equal.

This module travels into the image of a task: standard library only, nothing slow to import.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

HOST = "127.0.0.1"
PORT = 8000
_BODY_LIMIT_BYTES = 1 << 20
_IDLE_S = 30  # a client that says nothing for so long is hung up on


class Request(NamedTuple):
    """`headers` have lower-case names. `query` keeps the last of equal keys."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode(errors="replace"), keep_blank_values=True))

    @property
    def cookies(self) -> dict[str, str]:
        pairs = (part.strip().partition("=") for part in self.headers.get("cookie", "").split(";"))
        return {name: value for name, _, value in pairs}


class Response(NamedTuple):
    status: int
    body: bytes
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()


class Refusal(Exception):
    """The request cannot be served as it is. Raised in the middle of one, it takes its changes back."""

    def __init__(self, status: int, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


App = Callable[[Request], Response]


def server(app: App, address: tuple[str, int] = (HOST, PORT)) -> ThreadingHTTPServer:
    """Bound and listening; `serve_forever` answers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        timeout = _IDLE_S

        def answer(self) -> None:
            length = self.headers.get("Content-Length", "0")
            if not length.isdecimal() or int(length) > _BODY_LIMIT_BYTES or "Transfer-Encoding" in self.headers:
                self.close_connection = True
                self.respond(Response(413, b"send a Content-Length of at most 1 MiB\n", "text/plain"))
                return
            parts = urlsplit(self.path)
            request = Request(
                method="GET" if self.command == "HEAD" else self.command,
                path=unquote(parts.path),
                query=dict(parse_qsl(parts.query, keep_blank_values=True)),
                headers={name.lower(): value for name, value in self.headers.items()},
                body=self.rfile.read(int(length)),
            )
            self.respond(app(request))

        def respond(self, response: Response) -> None:
            self.send_response_only(response.status, HTTPStatus(response.status).phrase)
            self.send_header("Content-Type", response.content_type)
            self.send_header("Content-Length", str(len(response.body)))
            for name, value in response.headers:
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(response.body)

        def log_message(self, format: str, *args: object) -> None:  # what happened is in the database
            pass

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    return ThreadingHTTPServer(address, Handler)


def main(home: Path, prepare: Callable[[], None], open_app: Callable[[], App], command: list[str]) -> None:
    """The whole life of a service: make its database if there is none, listen (on $PORT, or 8000), answer for ever.

    With a `command` (a container's CMD behind our ENTRYPOINT) it answers from a child process, and this one becomes
    the command.
    """
    mask = os.umask(0o077)
    home.chmod(0o700)
    prepare()
    listening = server(lambda request: app(request), (HOST, int(os.environ.get("PORT", PORT))))
    if command and os.fork():
        os.umask(mask)
        os.execvp(command[0], command)
    app = open_app()  # after the fork, which no database connection may cross
    listening.serve_forever()
