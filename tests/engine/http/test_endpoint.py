"""One server behind HTTP: whatever goes wrong is one error that says what."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from muster import clock
from muster.engine.http.endpoint import Endpoint
from muster.errors import EngineError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def endpoint(handler: Handler) -> AsyncIterator[Endpoint]:
    application = web.Application()
    application.router.add_post("/call", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    client = Endpoint("r0", f"http://{host}:{port}/", "key", timeout_s=0.2)
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


def call(handler: Handler) -> object:
    async def calling() -> object:
        async with endpoint(handler) as client:
            return await client.call("POST", "/call", {"a": 1}, headers={"X": "y"})

    return clock.run(calling())


def test_an_answer_is_its_json_and_an_empty_one_is_nothing() -> None:
    async def echo(request: web.Request) -> web.Response:
        headers = [request.headers[name] for name in ("Authorization", "X")]
        return web.json_response([await request.json(), *headers])

    async def empty(request: web.Request) -> web.Response:
        return web.Response()

    assert call(echo) == [{"a": 1}, "Bearer key", "y"]
    assert call(empty) is None


@pytest.mark.parametrize(
    "body",
    [
        '{"error": {"message": "too long"}}',
        '{"error": "too long"}',
        '{"success": false, "message": "too long"}',
        '{"detail": "too long"}',
        "too long",
        '["too long"]',
    ],
)
def test_a_refusal_carries_its_status_and_what_the_server_says(body: str) -> None:
    async def refuses(request: web.Request) -> web.Response:
        return web.Response(status=400, text=body)

    with pytest.raises(EngineError, match=r"r0 /call: 400 .*too long") as raised:
        call(refuses)
    assert raised.value.evidence == {"status": 400}


def test_what_is_not_json_is_the_servers_fault() -> None:
    async def babbles(request: web.Request) -> web.Response:
        return web.Response(text="<html>")

    with pytest.raises(EngineError, match="r0: an answer that is not of the dialect"):
        call(babbles)


def test_a_call_ends_with_its_deadline() -> None:
    async def silent(request: web.Request) -> web.Response:
        await clock.sleep(5)
        return web.Response()

    with pytest.raises(EngineError, match=r"r0 /call: no answer within 0[.]2 s"):
        call(silent)


def test_a_dead_server_is_not_called_and_a_broken_connection_says_why() -> None:
    async def unused(request: web.Request) -> web.Response:
        raise AssertionError("called")

    async def calling() -> None:
        async with endpoint(unused) as client:
            client.mark_dead("out of memory")
            with pytest.raises(EngineError, match="r0 is dead: out of memory"):
                await client.call("POST", "/call")
        nobody = Endpoint("r1", "http://127.0.0.1:9")
        with pytest.raises(EngineError, match=r"r1 /call: .*ClientConnectorError"):
            await nobody.call("POST", "/call")
        await nobody.close()

    clock.run(calling())
