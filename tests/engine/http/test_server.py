"""The HTTP dialect: what it refuses, and that it names the field."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch
from aiohttp.test_utils import TestClient, TestServer

import tiny_llama as tiny
from muster import clock
from muster.engine.config import EmbeddedEngineConfig
from muster.engine.embedded.batching import BatchingEngine
from muster.engine.embedded.packed_weights import pack
from muster.engine.embedded.thread import EngineThread
from muster.engine.http.server import application
from muster.transport.receive import Receiver

Client = TestClient[Any, Any]
TOKEN = {"Authorization": "Bearer secret"}


def serve(body: Callable[[Client], Awaitable[None]]) -> None:
    """Run `body` against an engine in this process."""

    async def main() -> None:
        config = EmbeddedEngineConfig(dtype="float32", max_streams=2, max_model_len=128, kv_capacity_tokens=1024)
        weights = pack(tiny.CONFIG, tiny.random_state(0), torch.float32)
        core = BatchingEngine(config, weights, name="r", version=3, started_at=clock.now())
        engine = EngineThread(core, Receiver(label="test-server"), threads=1)
        async with TestClient(TestServer(application(engine, "secret"), handler_cancellation=True)) as client:
            await body(client)
        engine.close()
        assert not engine.failed.done()

    clock.run(main())


async def post(client: Client, path: str, body: Any) -> tuple[int, Any]:
    async with client.post(path, json=body, headers=TOKEN) as response:
        return response.status, await response.json()


GOOD = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 3, "seed": 1}}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "token_ids"),
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": ["a"]}, "token_ids"),
        ({"token_ids": [5000]}, "token_ids"),
        ({"token_ids": [1 << 40]}, "token_ids"),
        ({"token_ids": [5] * 200}, "token_ids"),
        ({**GOOD, "sampling_params": {"temperature": -1}}, "temperature"),
        ({**GOOD, "sampling_params": {"max_tokens": 0}}, "max_tokens"),
        ({**GOOD, "sampling_params": {"top_p": 0.9}}, "top_p"),
        ({**GOOD, "sampling_params": {"min_p": 0.1}}, "min_p"),
        ({**GOOD, "stream": "now and then"}, "stream"),
    ],
)
def test_a_malformed_body_is_400_and_names_the_field(body: Any, field: str) -> None:
    async def check(client: Client) -> None:
        status, answer = await post(client, "/inference/v1/generate", body)
        assert status == 400
        assert field in answer["error"]["message"]

    serve(check)


def test_a_body_that_is_no_json_is_400() -> None:
    async def check(client: Client) -> None:
        async with client.post("/score", data=b"{", headers=TOKEN) as response:
            assert response.status == 400

    serve(check)


def test_every_path_but_health_needs_the_token() -> None:
    async def check(client: Client) -> None:
        for path in ("/statistics", "/metrics", "/weight_info", "/is_paused"):
            assert (await client.get(path)).status == 401
            assert (await client.get(path, headers={"Authorization": "Bearer wrong"})).status == 401
            assert (await client.get(path, headers=TOKEN)).status == 200
        assert (await client.get("/health")).status == 200

    serve(check)


def test_an_answer_has_tokens_log_probabilities_versions_and_timings() -> None:
    async def check(client: Client) -> None:
        status, answer = await post(client, "/inference/v1/generate", {**GOOD, "request_id": "mine"})
        assert (status, answer["request_id"]) == (200, "mine")
        (choice,) = answer["choices"]
        assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == 3
        assert choice["finish_reason"] == "length"
        assert answer["weight_versions"] == [{"version": "3", "start": 0, "end": 3}]
        assert answer["usage"]["prompt_tokens"] == 3
        assert set(answer["timings"]) == {"queue_s", "prefill_s", "recompute_s", "decode_s", "paused_s"}

    serve(check)


def test_pausing_over_http_takes_vllms_modes_and_no_others() -> None:
    async def check(client: Client) -> None:
        assert (await post(client, "/pause?mode=sleep", {}))[0] == 400
        assert (await post(client, "/pause?mode=keep&clear_cache=maybe", {}))[0] == 400
        status, answer = await post(client, "/pause?mode=keep&clear_cache=true", {})
        assert (status, answer) == (200, {"status": "paused", "held": 0, "finished": 0, "aborted": 0, "held_tokens": 0})
        assert await (await client.get("/is_paused", headers=TOKEN)).json() == {"is_paused": True}
        assert (await post(client, "/resume", {}))[0] == 200
        assert (await post(client, "/abort_requests", {}))[1] == {"aborted": 0}
        assert (await post(client, "/reset_prefix_cache?reset_running_requests=true", {}))[0] == 200

    serve(check)


def test_what_the_engine_cannot_do_now_is_503() -> None:
    async def check(client: Client) -> None:
        status, answer = await post(client, "/finish_weight_update", {"weight_version": "9", "digest": "x"})
        assert status == 503
        assert "paused" in answer["error"]["message"]
        info = {"number": 9, "digest": "x", "transport": "memory", "location": "/nowhere", "dtype": "float32"}
        assert (await post(client, "/update_weights", {"update_info": info}))[0] == 503

    serve(check)


def test_metrics_are_prometheus_text_under_vllms_names() -> None:
    async def check(client: Client) -> None:
        await post(client, "/inference/v1/generate", GOOD)
        text = await (await client.get("/metrics", headers=TOKEN)).text()
        assert '\nvllm:generation_tokens_total{replica="r"} 3\n' in text
        assert '\nvllm:num_preemptions_total{replica="r"} 0\n' in text
        assert 'muster:weight_version{replica="r"} 3' in text

    serve(check)


def test_a_stream_that_is_complete_before_its_first_piece_is_sent_whole() -> None:
    async def body(client: Client) -> None:
        async with client.post("/inference/v1/generate", json={**GOOD, "stream": True}, headers=TOKEN) as response:
            assert response.content_type == "text/event-stream"
            assert response.content_length is not None, "one message, not chunks"
            (event,) = (await response.text()).removesuffix("\n\n").split("\n\n")
        streamed = json.loads(event.removeprefix("data: "))
        status, whole = await post(client, "/inference/v1/generate", GOOD)
        assert status == 200
        assert streamed["choices"] == whole["choices"]

    serve(body)
