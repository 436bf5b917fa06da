"""The proxy process: `python -m muster.sandbox.egress.process ORDERS_FD CONTROL_FD`. It dies with its controller.

    controller ─ open(id, hosts) + pidfd of PID 1 ─► parent ─fork─► child: joins the namespaces, binds, listens
        ▲ ▲                                                              │ id, hosts + listening socket
        │ └── report(id) ◄──────────── close(id) ─► proxy ◄──────────────┘
        └──── opened(id) ◄──────────────────────────┘

Law: two processes, because a process that joined a user namespace cannot return, and one with threads (the
resolver's) cannot join one: the parent has none, and forks a child for each door. The proxy stays in the host's
network, where it dials; the socket it accepts from stays in the sandbox's.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from muster.errors import UserError
from muster.sandbox.egress import rules
from muster.sandbox.egress.proxy import SandboxProxy

HOST = "127.0.0.1"
PORT = 3128
MESSAGE_BYTES = 128 * 1024  # the longest message; they are packets, and come whole or not at all
_BACKLOG = 128
_RESOLVERS = 64  # names that are looked up at once; a slow name server holds one of them each
_CLONE_NEWNET = 0x4000_0000
_CLONE_NEWUSER = 0x1000_0000


def main(orders_fd: int, control_fd: int) -> None:
    orders, control = socket.socket(fileno=orders_fd), socket.socket(fileno=control_fd)
    made, making = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        control.close()
        made.close()
        keep(orders, making)
        os._exit(0)
    orders.close()
    making.close()
    asyncio.run(Proxy(control, made).serve())


def keep(orders: socket.socket, making: socket.socket) -> None:
    """The parent: one child for each order, until the controller is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, MESSAGE_BYTES, 1)
        if not message:
            return
        if os.fork() == 0:
            make(message, descriptors[0], making)
            os._exit(0)
        os.close(descriptors[0])


def make(message: bytes, init: int, making: socket.socket) -> None:
    """Hand `message` on with a socket that listens in the network of the process behind `init`."""
    try:
        join(init)
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, PORT))
            listener.listen(_BACKLOG)
            socket.send_fds(making, [message], [listener.fileno()])
    except OSError as error:
        making.send(json.dumps({"id": json.loads(message)["id"], "error": error.strerror}).encode())


def join(init: int) -> None:
    """Enter the network namespace, and the user namespace if it is another, of a process. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(init, _CLONE_NEWUSER | _CLONE_NEWNET) == 0:
        return
    # refused as invalid where the user namespace is our own already: then only the network is another
    if libc.setns(init, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class Proxy:
    """All doors of one controller."""

    def __init__(self, control: socket.socket, made: socket.socket) -> None:
        self._control, self._made = control, made
        self._doors: dict[int, SandboxProxy] = {}
        self._unwanted: set[int] = set()  # closed before they were opened
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(_RESOLVERS))
        # both stay blocking: they are read when there is something, and a busy controller makes us wait, not fail
        loop.add_reader(self._control, self._on_control)
        loop.add_reader(self._made, self._on_made)
        await self._over.wait()
        os._exit(0)  # a resolver thread may hang in a lookup

    def _on_control(self) -> None:
        message = self._control.recv(MESSAGE_BYTES)
        if not message:
            self._over.set()
            return
        self._start(self._close(json.loads(message)["close"]))

    def _on_made(self) -> None:
        message, descriptors, _, _ = socket.recv_fds(self._made, MESSAGE_BYTES, 1)
        if not message:  # without a parent nothing can be opened: the controller starts another
            self._over.set()
            return
        order = json.loads(message)
        if not descriptors:
            self._say(order)
            return
        self._start(self._open(order, socket.socket(fileno=descriptors[0])))

    async def _open(self, order: dict[str, Any], listener: socket.socket) -> None:
        number: int = order["id"]
        if number in self._unwanted:
            self._unwanted.discard(number)
            listener.close()
            return
        try:
            allowed = rules.parse(order["hosts"], order["opened"])
        except UserError as error:
            listener.close()
            self._say({"id": number, "error": str(error)})
            return
        door = self._doors[number] = SandboxProxy(listener, allowed)
        await door.start()
        self._say({"id": number})

    async def _close(self, number: int) -> None:
        door = self._doors.pop(number, None)
        if door is None:
            self._unwanted.add(number)
            return
        self._say({"id": number, "report": asdict(await door.close())})

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError:
            self._over.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
