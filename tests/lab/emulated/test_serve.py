"""The emulated engine behind HTTP: the chat dialect, tokens and errors."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lab.emulated.books import config
from muster import clock
from muster.engine.timing import EngineTiming
from muster.errors import UserError
from muster.lab.emulated.chat import Message, tokens_of
from muster.lab.emulated.engine import EmulatedEngine
from muster.lab.emulated.presets import to_toml
from muster.lab.emulated.replica import INITIAL
from muster.lab.emulated.serve import emulate, serving

FAST = config(
    timing=EngineTiming(step_s=1e-4, prefill_s=1e-6), vocabulary=1000, max_model_len=2048, max_step_tokens=2048
)
HELLO = {"role": "user", "content": "List the files of this directory, newest first, please."}


def serve(body: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
    async def main() -> None:
        engine = EmulatedEngine(FAST, name="emulated", version=INITIAL)
        headers = {"Authorization": "Bearer secret", "X-Session-ID": "s"}
        async with (
            serving(engine, token="secret") as url,
            aiohttp.ClientSession(base_url=url, headers=headers) as client,
        ):
            await body(client)

    clock.run(main())


async def chat(client: aiohttp.ClientSession, messages: list[Any], **more: Any) -> tuple[int, Any]:
    async with client.post("/v1/chat/completions", json={"messages": messages, **more}) as response:
        return response.status, await response.json()


def test_a_conversation_that_grows_starts_from_its_cache() -> None:
    async def body(client: aiohttp.ClientSession) -> None:
        status, first = await chat(client, [HELLO], max_tokens=100)
        assert status == 200
        assert first["usage"]["completion_tokens"] == 100
        assert first["choices"][0]["finish_reason"] == "length"
        reply = first["choices"][0]["message"]
        _, second = await chat(client, [HELLO, reply, {"role": "user", "content": "Thanks."}], max_tokens=5)
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0.8 * second["usage"]["prompt_tokens"]

    serve(body)


def test_a_conversations_tokens_begin_with_those_of_its_beginning_and_of_the_answer() -> None:
    hello, reply = Message(role="user", content="w5 is not a token é"), Message(role="assistant", content="w17 w999")
    short, long = tokens_of([hello], 1000).tolist(), tokens_of([hello, reply], 1000).tolist()
    assert long[: len(short) + 2] == [*short, 17, 999]
    assert all(0 <= token < 1000 for token in long)


def test_what_is_wrong_with_a_chat_request_is_named() -> None:
    async def body(client: aiohttp.ClientSession) -> None:
        assert (await chat(client, []))[0] == 400
        status, answer = await chat(client, [HELLO], max_tokens=0)
        assert (status, "max_tokens" in answer["error"]["message"]) == (400, True)
        status, answer = await chat(client, [{**HELLO, "content": "x" * 10_000}])
        assert (status, "max_model_len" in answer["error"]["message"]) == (400, True)
        async with client.post("/v1/chat/completions", json={}, headers={"Authorization": ""}) as response:
            assert response.status == 401
        async with client.get("/v1/models") as response:
            assert (await response.json())["data"][0]["id"] == "emulated"

    serve(body)


def test_it_listens_beyond_loopback_only_with_a_token_and_says_when_a_port_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MUSTER_ENGINE_TOKEN", raising=False)
    with pytest.raises(UserError, match="MUSTER_ENGINE_TOKEN"):
        emulate(FAST, name="r", host="0.0.0.0", port=0, say=print)

    async def body(client: aiohttp.ClientSession) -> None:
        port = client._base_url.port  # type: ignore[union-attr]
        engine = EmulatedEngine(FAST, name="second", version=INITIAL)
        with pytest.raises(UserError, match="choose another --port"):
            async with serving(engine, port=port or 0):
                pass

    serve(body)


def test_the_command_serves_until_it_is_terminated_and_can_be_calibrated(tmp_path: Path) -> None:
    preset = tmp_path / "small.toml"
    timing = EngineTiming(step_s=0.01, row_s=4e-4, prefill_s=6e-4)  # slow beside the delays of a busy machine
    preset.write_text(to_toml(FAST.model_copy(update={"max_running": 8, "timing": timing})))

    async def command(*words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import muster.app.cli; muster.app.cli.main()",
            "engine",
            *words,
            stdout=PIPE,
            env=os.environ,
        )

    async def main() -> None:
        server = await command("emulate", "--preset", str(preset), "--port", "0")
        assert server.stdout is not None
        try:
            async with clock.timeout(20):
                url = (await server.stdout.readline()).decode().split()[-1]
            client = await command("calibrate", url, "--longest", "512", "--repeats", "1")
            async with clock.timeout(60):
                said = (await client.communicate())[0].decode()
            assert client.returncode == 0
            assert "[timing]" in said
            assert "max_running = 8" in said
        finally:
            server.send_signal(signal.SIGTERM)
            code = await server.wait()
        assert code == 0

    clock.run(main())
