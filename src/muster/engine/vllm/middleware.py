"""Muster's dialect beside vLLM's own API: `--middleware muster.engine.vllm.middleware.Beside`.

    vLLM's API process ─┬─ vLLM's port: as vLLM made it (loopback)
                        └─ MUSTER_ENGINE_PORT: `server.application` around the same engine

Law: nothing of vLLM is changed or hidden. A middleware is vLLM's documented way into its API process; this one passes
everything on, and opens its own port when the application starts. With a bearer token in MUSTER_ENGINE_TOKEN; without
one it serves loopback only. vLLM's development endpoints are not needed and stay off.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from aiohttp import web

from muster.engine.http.server import application
from muster.engine.http.wire import TOKEN_VARIABLE
from muster.engine.vllm.served import VllmServed
from muster.errors import UserError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Beside:
    """An ASGI middleware. Settings are environment variables: what vLLM starts has no other ear for us.

    MUSTER_ENGINE_HOST, MUSTER_ENGINE_PORT, MUSTER_ENGINE_NAME, MUSTER_ENGINE_TOKEN, MUSTER_ENGINE_VERSION (number of
    the weights that vLLM loads at the start).
    """

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]) -> None:
        self._app = app
        self._runner: web.AppRunner | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            return await self._app(scope, receive, send)

        async def sent(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                await self._open(scope["app"].state.engine_client)
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            if self._runner is not None:
                await self._runner.cleanup()

    async def _open(self, engine: Any) -> None:
        host, port = os.environ.get("MUSTER_ENGINE_HOST", "127.0.0.1"), os.environ.get("MUSTER_ENGINE_PORT", "")
        token = os.environ.get(TOKEN_VARIABLE) or None
        if not port.isdecimal():
            raise UserError(f"MUSTER_ENGINE_PORT={port}: set it to the port at which Muster shall find this server")
        if token is None and not ipaddress.ip_address(host).is_loopback:
            raise UserError(f"MUSTER_ENGINE_HOST={host}: set {TOKEN_VARIABLE} to serve beyond loopback")
        served = await VllmServed.begun(
            engine,
            name=os.environ.get("MUSTER_ENGINE_NAME", "vllm"),
            number=int(os.environ.get("MUSTER_ENGINE_VERSION", "0")),
        )
        self._runner = web.AppRunner(application(served, token), handler_cancellation=True, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, int(port), backlog=1024).start()
