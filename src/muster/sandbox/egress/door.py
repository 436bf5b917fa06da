"""The controller's side: opens and closes the doors of sandboxes.

    open ─► [start the process, once] ─► order, with a descriptor of PID 1 ─► opened ─► Door ─close─► EgressReport

Law: the proxy is a process of ours that may die: then doors say so in their reports, and the next `open` starts
another. Nothing here resolves a name or touches a byte of a sandbox.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from muster import clock
from muster.errors import SandboxStartError
from muster.sandbox.egress import rules
from muster.sandbox.egress.process import HOST, MESSAGE_BYTES, PORT
from muster.sandbox.egress.report import EgressReport

OPEN_S = 20.0  # the first one starts the process
CLOSE_S = 2.0
_ASKED = 32  # questions at once: a socket holds some two hundred, and what does not fit is an error
_URL = f"http://{HOST}:{PORT}"
_INSIDE = "localhost,127.0.0.1,::1"
ENV: Mapping[str, str] = {
    **{name: _URL for scheme in ("http", "https") for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")},
    "no_proxy": _INSIDE,
    "NO_PROXY": _INSIDE,
}
"""What programs in a sandbox with a door must find in their environment."""


class Door:
    """The way out of one sandbox. Made by `Egress.open`."""

    def __init__(self, link: _Link, number: int) -> None:
        self._link = link
        self._number = number

    async def close(self) -> EgressReport:
        """Cut all connections. Once; a proxy that does not answer is reported as lost."""
        return await self._link.close_door(self._number)


class Gate:
    """The doors of one sandbox, one after the other: each start of its processes has a network of its own."""

    def __init__(self, egress: Egress, hosts: tuple[str, ...]) -> None:
        self._egress = egress
        self._hosts = hosts
        self._door: Door | None = None
        self.report = EgressReport()
        """Of the doors that are closed."""

    @property
    def env(self) -> Mapping[str, str]:
        return ENV if self._hosts else {}

    async def open(self, init_pid: int) -> None:
        """For the sandbox whose PID 1 this is. Before anything runs in it, which could take the port."""
        await self.close()
        if self._hosts:
            self._door = await self._egress.open(init_pid, self._hosts)

    async def close(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            self.report += await door.close()


class Egress:
    """The proxy of one backend. `opened`: networks that are not public, and may be reached all the same.

    Example:
        door = await egress.open(init_pid, ("example.org", "*.example.net"))
        report = await door.close()
    """

    def __init__(self, opened: tuple[str, ...] = ()) -> None:
        rules.parse((), opened)
        self._opened = opened
        self._link: _Link | None = None

    async def open(self, init_pid: int, hosts: tuple[str, ...]) -> Door:
        """Let the sandbox whose PID 1 is `init_pid` here reach `hosts`, at `PORT` on its own loopback.

        Raises `TaskError` for a malformed host, `SandboxStartError` when the proxy cannot serve it.
        """
        rules.parse(hosts)
        if self._link is not None and not self._link.alive:
            await self.close()  # meanwhile another caller may have started the next one
        if self._link is None:
            self._link = _Link()
        link = self._link
        return Door(link, await link.open_door(init_pid, hosts, self._opened))

    async def close(self) -> None:
        """End the proxy, with every door."""
        link, self._link = self._link, None
        if link is not None:
            await link.end()


class _Link:
    """One proxy process, and the questions it has not answered. Make it on the loop."""

    def __init__(self) -> None:
        self._orders, orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with orders, control:
            line = [sys.executable, "-m", "muster.sandbox.egress.process", str(orders.fileno()), str(control.fileno())]
            # a session of its own: Ctrl-C is for the controller, which closes its sandboxes first
            self._process = subprocess.Popen(
                line, pass_fds=(orders.fileno(), control.fileno()), stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._turn = asyncio.Semaphore(_ASKED)
        self._loop = asyncio.get_running_loop()
        self._control.setblocking(False)
        self._orders.setblocking(False)
        self._loop.add_reader(self._control, self._on_answer)
        self.alive = True

    async def open_door(self, init_pid: int, hosts: tuple[str, ...], opened: tuple[str, ...]) -> int:
        number = next(self._numbers)
        order = json.dumps({"id": number, "hosts": hosts, "opened": opened}).encode()
        try:
            async with clock.timeout(OPEN_S), self._turn:
                init = os.pidfd_open(init_pid)
                try:
                    socket.send_fds(self._orders, [order], [init])
                finally:
                    os.close(init)
                answer = await self._answer(number)
        except TimeoutError:
            self._send_close(number)
            raise SandboxStartError(f"the egress proxy did not answer in {OPEN_S:g} s") from None
        except OSError as error:
            raise SandboxStartError(f"the egress proxy cannot be asked: {error.strerror}") from error
        except asyncio.CancelledError:
            self._send_close(number)
            raise
        if "error" in answer:
            raise SandboxStartError(f"the egress proxy cannot serve this sandbox: {answer['error']}")
        return number

    async def close_door(self, number: int) -> EgressReport:
        try:
            async with clock.timeout(CLOSE_S), self._turn:
                self._send_close(number)
                answer = await self._answer(number)
        except TimeoutError:
            return EgressReport(proxy_lost=True)
        return EgressReport(**answer["report"]) if "report" in answer else EgressReport(proxy_lost=True)

    async def end(self) -> None:
        self._lose()
        self._process.kill()
        await asyncio.to_thread(self._process.wait)

    async def _answer(self, number: int) -> dict[str, Any]:
        if not self.alive:
            return {"error": "it ended"}
        future = self._waiting[number] = self._loop.create_future()
        try:
            return await future
        finally:
            del self._waiting[number]

    def _send_close(self, number: int) -> None:
        try:
            self._control.send(json.dumps({"close": number}).encode())
        except BlockingIOError:
            return  # it hangs: whoever waits for its answer is told by a deadline
        except OSError:
            self._lose()

    def _on_answer(self) -> None:
        try:
            message = self._control.recv(MESSAGE_BYTES)
        except OSError:
            message = b""
        if not message:
            self._lose()
            return
        answer = json.loads(message)
        future = self._waiting.get(answer["id"])
        if future is not None and not future.done():
            future.set_result(answer)

    def _lose(self) -> None:
        """The process is gone or does not listen. Nobody waits for it any longer."""
        if not self.alive:
            return
        self.alive = False
        self._loop.remove_reader(self._control)
        for future in self._waiting.values():
            if not future.done():
                future.set_result({"error": "it ended"})
        self._control.close()
        self._orders.close()
