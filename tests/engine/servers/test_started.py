"""A server and its replica, from a command to the end of both."""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Self

import pytest

from muster import clock
from muster.engine.servers.process import ServerProcess
from muster.engine.servers.started import answering, held_ports, started
from muster.errors import EngineError

ENV = dict(os.environ)
SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *words): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Client:
    def __init__(self, url: str) -> None:
        self.url, self.death = url, ""
        self.connected = False

    async def __aenter__(self) -> Self:
        self.connected = True
        return self

    async def __aexit__(self, *error: object) -> None:
        self.connected = False

    def mark_dead(self, reason: str) -> None:
        self.death = reason


def listen(port: int) -> socket.socket:
    """As servers do."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    return listener


def test_a_held_port_is_given_to_nobody_who_asks_for_any_and_a_server_can_listen_there() -> None:
    with held_ports(2) as held:
        assert len(set(held)) == 2
        with pytest.raises(OSError, match="in use"), socket.socket() as stranger:
            stranger.bind(("127.0.0.1", held[0]))
        with held_ports(500) as others:
            assert len({*held, *others}) == 502
            for port in held:
                with listen(port), socket.create_connection(("127.0.0.1", port)):
                    pass


def test_a_server_is_a_replica_once_it_answers_and_both_end_together() -> None:
    async def main() -> None:
        ended: list[str] = []
        with held_ports(1) as (port,):
            async with started(
                [sys.executable, "-c", SERVER, str(port)],
                name="s",
                env=ENV,
                ready=lambda server: answering(server, f"http://127.0.0.1:{port}", 20.0),
                replica=Client,
                on_end=ended.append,
            ) as client:
                assert client.connected
                assert client.url == f"http://127.0.0.1:{port}"
            assert not client.connected
        assert ended == []
        assert client.death == ""

    clock.run(main())


def test_one_that_ends_by_itself_leaves_a_dead_replica_and_its_last_words() -> None:
    async def main() -> None:
        ended: list[str] = []
        pids: list[int] = []

        async def ready(server: ServerProcess) -> str:
            pids.append(server.pid)
            return await server.first_line(20.0)

        script = "echo out of memory >&2; echo http://here; while sleep 60; do :; done"
        async with started(
            ["/bin/sh", "-c", script], name="s", env=ENV, ready=ready, replica=Client, on_end=ended.append
        ) as client:
            os.kill(pids[0], signal.SIGKILL)
            async with clock.timeout(10):
                while not ended:
                    await clock.sleep(0.01)
        assert client.death == ended[0] == "its process ended with -9: out of memory"

    clock.run(main())


def test_one_that_never_gets_ready_is_an_error_with_its_words() -> None:
    async def main() -> None:
        with held_ports(1) as (port,):
            async with started(
                ["/bin/sh", "-c", "echo no model >&2; exit 1"],
                name="s",
                env=ENV,
                ready=lambda server: answering(server, f"http://127.0.0.1:{port}", 20.0),
                replica=Client,
                on_end=lambda words: None,
            ):
                raise AssertionError("it started")

    with pytest.raises(EngineError, match=r"ended while starting: .*no model"):
        clock.run(main())
