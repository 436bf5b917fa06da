"""One door: the listening socket of one sandbox, and the connections through it.

    client ─head─► http.parse ─► rules.named ─► resolve ─► rules.reachable ─► connect ─► bytes both ways
                      └ 400          └ 403         └ 502        └ 403            └ 502

Law: decides nothing itself, and trusts nobody: every wait has a deadline, every buffer a bound, every door a
number of connections. What a sandbox sends never ends the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterable

from muster import clock
from muster.sandbox.egress import http, rules
from muster.sandbox.egress.http import BadRequest, ProxyRequest
from muster.sandbox.egress.report import EgressReport, EgressTally
from muster.sandbox.egress.rules import Address, Rules

HEAD_S = 30.0  # from connecting until the whole request head is there
CONNECT_S = 15.0  # resolving, and each attempt to connect
IDLE_S = 300.0  # no byte in either direction
LINGER_S = 10.0  # for a client to take the last bytes
CONNECTIONS = 128  # of one door at once; more are turned away, or one sandbox could use up the process's descriptors
_CHUNK_BYTES = 64 * 1024

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Resolve = Callable[[str, int], Awaitable[list[Address]]]
Connect = Callable[[Address, int], Awaitable[Stream]]


class Refused(Exception):
    """The rules say no; the message is for whoever asked."""


async def resolve(host: str, port: int) -> list[Address]:
    """Every address of `host`, in the resolver's order. Raises `OSError`."""
    answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    found = [rules.address_of(str(sockaddr[0])) for *_, sockaddr in answers]
    return [address for address in dict.fromkeys(found) if address is not None]


async def connect(address: Address, port: int) -> Stream:
    return await asyncio.open_connection(str(address), port)


def own(addresses: Iterable[Address]) -> set[Address]:
    """Those that are this machine's: the kernel would send to them from themselves."""
    return {address for address in addresses if _source(address) == address}


class SandboxProxy:
    """Serves one sandbox. Make it on the loop; `start`, then `close`, which cuts every connection."""

    def __init__(
        self, listener: socket.socket, allowed: Rules, *, resolve: Resolve = resolve, connect: Connect = connect
    ) -> None:
        self._listener = listener
        self._rules = allowed
        self._resolve = resolve
        self._connect = connect
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._tally = EgressTally()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, sock=self._listener, limit=http.HEAD_BYTES)

    async def close(self) -> EgressReport:
        if self._server is not None:
            self._server.close()
        self._listener.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        return self._tally.report()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            try:
                await self._request(reader, writer)
                writer.close()
                async with clock.timeout(LINGER_S):
                    await writer.wait_closed()
            finally:
                writer.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tally.requests += 1
        try:
            async with clock.timeout(HEAD_S):
                request = http.parse(await reader.readuntil(http.END))
        except asyncio.LimitOverrunError:
            writer.write(http.answer(431, "the request's head is too long"))
            return
        except BadRequest as error:
            writer.write(http.answer(400, str(error)))
            return
        where = f"{request.host}:{request.port}"
        try:
            upstream = await self._upstream(request)
        except Refused as error:
            self._tally.refuse(where)
            writer.write(http.answer(403, str(error)))
            return
        except (OSError, TimeoutError) as error:
            self._tally.fail(where)
            writer.write(http.answer(502, f"cannot reach {where}: {_said(error)}"))
            return
        try:
            await self._carry(request, (reader, writer), upstream)
        finally:
            upstream[1].transport.abort()

    async def _upstream(self, request: ProxyRequest) -> Stream:
        refusal = rules.named(self._rules, request.host, request.port)
        if refusal:
            raise Refused(refusal)
        literal = rules.address_of(request.host)
        async with clock.timeout(CONNECT_S):
            addresses = [literal] if literal else await self._resolve(request.host, request.port)
        good = rules.reachable(self._rules, request.port, addresses, own(addresses))
        if not good:
            shown = ", ".join(str(address) for address in addresses[:3]) or "nothing"
            raise Refused(f"{request.host} leads to {shown}, which no sandbox may reach")
        failure: OSError | TimeoutError = TimeoutError()
        for address in good:
            try:
                async with clock.timeout(CONNECT_S):
                    return await self._connect(address, request.port)
            except (OSError, TimeoutError) as error:
                failure = error
        raise failure

    async def _carry(self, request: ProxyRequest, client: Stream, upstream: Stream) -> None:
        """Bytes both ways until the server has no more, or nobody says anything."""
        async with clock.timeout(IDLE_S) as idle:
            flow = _Flow(self._tally, idle)
            if request.forward is None:
                client[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                upstream[1].write(request.forward)
            limit = None if request.forward is None else request.body_bytes
            up = asyncio.get_running_loop().create_task(flow.up(client[0], upstream[1], limit))
            try:
                if request.forward is not None:
                    await flow.heads(upstream[0], client[1])
                await flow.down(upstream[0], client[1])
                await client[1].drain()
            finally:
                up.cancel()
                await asyncio.gather(up, return_exceptions=True)


class _Flow:
    """Moves bytes, counts them, and puts off the deadline with each."""

    def __init__(self, tally: EgressTally, idle: asyncio.Timeout) -> None:
        self._tally = tally
        self._idle = idle
        self._loop = asyncio.get_running_loop()

    async def up(self, client: asyncio.StreamReader, server: asyncio.StreamWriter, limit: int | None) -> None:
        """To the server: `limit` bytes (None: all there are), then end of file if the client ended."""
        while limit is None or limit > 0:
            data = await client.read(_CHUNK_BYTES if limit is None else min(limit, _CHUNK_BYTES))
            if not data:
                server.write_eof()
                return
            self._tally.sent_bytes += len(data)
            limit = None if limit is None else limit - len(data)
            await self._pass(data, server)

    async def heads(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """The server's response head, and those before it, as the client may see them."""
        while True:
            try:
                head = await server.readuntil(http.END)
                if http.interim(head):
                    client.write(head)
                    continue
                await self._pass(http.response(head), client)
            except (BadRequest, asyncio.LimitOverrunError):
                client.write(http.answer(502, "the server's answer is no HTTP/1"))
            return

    async def down(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(_CHUNK_BYTES):
            self._tally.received_bytes += len(data)
            await self._pass(data, client)

    async def _pass(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        self._idle.reschedule(self._loop.time() + IDLE_S)
        writer.write(data)
        await writer.drain()


def _said(error: OSError | TimeoutError) -> str:
    if error.errno is None:
        return "it does not answer"
    return os.strerror(error.errno) if error.errno > 0 else str(error.strerror)  # the resolver's codes are negative


def _source(address: Address) -> Address | None:
    """From which address the kernel would send to this one; None when it would not."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((str(address), 9))  # sends nothing
        return rules.address_of(str(probe.getsockname()[0]))
    return None
