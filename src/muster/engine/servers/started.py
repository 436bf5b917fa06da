"""From a command to a replica that is ready, and to the end of both: the one shape for every kind of server.

    command ─► process ─► ready: it tells its URL, or answers at the one that it was given ─► replica ─► …
                  └─ ends by itself ─► its last words: calls of the replica fail and say them, `on_end` is told

Law: knows no kind. A port that was promised to a server is held for it: nobody else gets it in between.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol, Self, TypeVar

from muster.engine.http.endpoint import Endpoint
from muster.engine.servers.process import ServerProcess, spawn
from muster.errors import EngineError

_GRACE_S = 5.0  # between SIGTERM and SIGKILL: to remove what it has fetched
_PROBE_S = 5.0


class Client(AbstractAsyncContextManager["Client"], Protocol):
    """A replica behind HTTP; entering it connects."""

    def mark_dead(self, reason: str) -> None: ...

    async def __aenter__(self) -> Self: ...


R = TypeVar("R", bound=Client)


@asynccontextmanager
async def started(
    command: Sequence[str],
    *,
    name: str,
    env: Mapping[str, str],
    ready: Callable[[ServerProcess], Awaitable[str]],
    replica: Callable[[str], R],
    on_end: Callable[[str], None],
    log: Path | None = None,
) -> AsyncGenerator[R]:
    """Start a server and yield its replica when it is ready.

    env: all of its environment, a secret included: arguments are for everyone to read. ready: waits until the server
    is, and returns its URL, with which `replica` is called. on_end: called with its last words if it ends by itself.
    log: everything it says is appended to it.
    Raises `EngineError` with the server's own words when it does not get ready.

    Example:
        async with started(command, name="r0", env=env, ready=lambda s: answering(s, url, 600.0),
                           replica=lambda url: HttpReplica("r0", url, token), on_end=print) as replica: ...
    """
    async with spawn(command, name=name, env=env, grace_s=_GRACE_S, log=log) as server:
        client = replica(await ready(server))
        server.on_end(client.mark_dead)
        async with client:
            server.on_end(on_end)
            yield client


async def answering(server: ServerProcess, url: str, timeout_s: float) -> str:
    """`url`, once the server's /health there says that it can serve."""
    await server.ready_when(lambda: _healthy(server.name, url), timeout_s)
    return url


@contextmanager
def held_ports(count: int) -> Generator[list[int]]:
    """Numbers of loopback ports for servers that take a number and no socket; nobody else is given them in the block.

    Each is held by a socket that is bound and never listens. With SO_REUSEADDR on both sides, and every server sets it,
    the kernel lets one listen beside it, but hands the number to nobody who asks for any.
    """
    with ExitStack() as stack:
        yield [_held_port(stack) for _ in range(count)]


def _held_port(stack: ExitStack) -> int:
    holder = stack.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return int(holder.getsockname()[1])


async def _healthy(name: str, url: str) -> bool:
    endpoint = Endpoint(name, url, timeout_s=_PROBE_S)
    try:
        await endpoint.call("GET", "/health")
        return True
    except EngineError:
        return False
    finally:
        await endpoint.close()
