"""A double of SGLang's server: its HTTP interface over a tiny model that really loads and really computes.

Its API and its behaviour were read from release 0.5.23 (entrypoints/http_server.py, managers/{io_struct,
tokenizer_manager,tokenizer_control_mixin,scheduler,schedule_batch}.py, scheduler_components/weight_updater.py,
utils/weight_versions.py). The release itself needs a GPU and does not run here; what this double answers and refuses is
written after that source, and nothing has been compared with a running server.

Law: a request that comes in a pause waits in front of the scheduler; an update in a pause goes ahead, else it waits
until nothing runs; answers that mean "refused" have the released status and shape.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from aiohttp import web
from safetensors import SafetensorError
from safetensors.torch import load_file

from engine.sglang.sglang_scheduler import Request, Scheduler
from muster import clock
from muster.engine.sglang.replica import SglangReplica
from muster.engine.sglang.wire import label_of
from muster.model import weights
from muster.model.llama import Llama
from muster.transport.receive import Receiver
from muster.types import Version

RELEASE = "0.5.23"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(kw_only=True)
class Faults:
    """Faults of a server."""

    raw_logprobs: bool = False  # SGLANG_RETURN_ORIGINAL_LOGPROB
    ignores_updates: bool = False  # answers 200 and loads nothing
    breaks_off: bool = False  # fails in the middle of an update
    deaf: bool = False  # never answers an update
    silent: bool = False  # never answers a pause
    corrupts: bool = False  # loads an update with one wrong tensor


class Double:
    def __init__(
        self,
        folder: Path,
        *,
        weight_version: str = "default",
        api_key: str | None = None,
        overlap: bool = True,
        max_running: int = 8,
        faults: Faults | None = None,
    ) -> None:
        self.faults = faults or Faults()
        self.config, state = weights.load(folder, torch.float32)
        model = Llama.from_state(self.config, state).requires_grad_(False)
        self.scheduler = Scheduler(
            model, weight_version, max_running=max_running, overlap=overlap, raw_logprobs=self.faults.raw_logprobs
        )
        self.model_path, self.is_pause = str(folder), False
        self.heard: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self._api_key, self._overlap = api_key, overlap
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._in_flight: list[Request] = []

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._authorised], client_max_size=1 << 26)
        application.add_routes(
            [
                web.get("/health", _empty),
                web.get("/model_info", self._model_info),
                web.get("/server_info", self._server_info),
                web.get("/v1/loads", self._loads),
                web.post("/generate", self._generate),
                web.post("/abort_request", self._abort),
                web.post("/pause_generation", self._pause),
                web.post("/continue_generation", self._continue),
                web.post("/flush_cache", self._flush),
                web.post("/update_weights_from_disk", self._update),
                web.post("/update_weight_version", self._relabel),
                web.post("/weights_checker", self._check),
            ]
        )
        return application

    @web.middleware
    async def _authorised(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else {}
        self.heard.append((request.path, body, dict(request.headers)))
        free = request.path.startswith(("/health", "/ready", "/metrics"))
        if self._api_key and not free and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    # --- what it is -----------------------------------------------------------------------------------

    async def _model_info(self, _: web.Request) -> web.Response:
        info = {"model_path": self.model_path, "is_generation": True, "weight_version": self.scheduler.version}
        return web.json_response(info)

    async def _server_info(self, _: web.Request) -> web.Response:
        info = {"version": RELEASE, "disable_overlap_schedule": not self._overlap, "internal_states": [{}]}
        return web.json_response(info)

    async def _loads(self, _: web.Request) -> web.Response:
        load = {
            "dp_rank": 0,
            "num_running_reqs": len(self.scheduler.running),
            "num_waiting_reqs": len(self.scheduler.waiting),
            "num_used_tokens": self.scheduler.used_tokens,
            "max_total_num_tokens": 1 << 20,
            "max_running_requests": self.scheduler.max_running,
        }
        return web.json_response({"version": RELEASE, "loads": [load]})

    # --- requests -------------------------------------------------------------------------------------

    async def _generate(self, http: web.Request) -> web.Response:
        body = await http.json()
        single = not isinstance(body["input_ids"][0], list) if body["input_ids"] else True
        requests = [self._request(body, 0, body["input_ids"])] if single else self._requests(body)
        for request in requests:
            if (refusal := self._refusal(request)) is not None:
                return web.json_response({"error": {"message": refusal}}, status=400)
        await self._unpaused.wait()
        self._in_flight += requests
        self.scheduler.waiting += requests
        try:
            answers = [await request.ended for request in requests]
        finally:
            self._in_flight = [request for request in self._in_flight if request not in requests]
        return web.json_response(answers[0] if single else answers)

    def _requests(self, body: dict[str, Any]) -> list[Request]:
        return [self._request(body, index, prompt) for index, prompt in enumerate(body["input_ids"])]

    def _request(self, body: dict[str, Any], index: int, prompt: list[int]) -> Request:
        def own(value: Any) -> Any:
            return value[index] if isinstance(value, list) and isinstance(body["input_ids"][0], list) else value

        parameters = body["sampling_params"]
        return Request(
            rid=own(body["rid"]),
            prompt=prompt,
            parameters=parameters,
            salt=body.get("cache_salt"),
            logprob_start=body.get("logprob_start_len", -1),
            asked=own(body.get("token_ids_logprob")),
            rng=np.random.default_rng(parameters.get("sampling_seed")),
            arrived=clock.now(),
        )

    def _refusal(self, request: Request) -> str | None:
        tokens, context = len(request.prompt), self.config.context
        if not tokens:
            return "input_ids cannot be empty."
        if tokens >= context:
            return f"The input ({tokens} tokens) is longer than the model's context length ({context} tokens)."
        if tokens + (new := request.parameters["max_new_tokens"]) > context:
            return (
                f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested "
                f"a total of {tokens + new} tokens: {tokens} tokens from the input messages and {new} tokens for the "
                "completion."
            )
        return None

    async def _abort(self, http: web.Request) -> web.Response:
        body = await http.json()
        if body.get("abort_all") or body.get("rid"):
            self.scheduler.abort(body.get("rid", ""), body.get("abort_all", False))
        return web.Response()

    # --- weights --------------------------------------------------------------------------------------

    async def _pause(self, http: web.Request) -> web.Response:
        mode = (await http.json()).get("mode", "abort")
        self.is_pause = True
        self._unpaused.clear()
        if mode != "abort":
            self.scheduler.pause(mode)
        if self.faults.silent:
            await asyncio.Event().wait()
        while mode == "abort" and self._in_flight:
            self.scheduler.abort("", abort_all=True)
            await clock.sleep(1.0)
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, _: web.Request) -> web.Response:
        self.is_pause, self.scheduler.paused = False, False
        self._unpaused.set()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def _flush(self, _: web.Request) -> web.Response:
        return web.Response(text="Cache flushed.\n") if self.scheduler.flush() else web.Response(status=400)

    async def _update(self, http: web.Request) -> web.Response:
        body = await http.json()
        while self.faults.deaf:
            await clock.sleep(0.01)
        while not self.is_pause and self._in_flight:
            await clock.sleep(0.01)
        self.model_path = body["model_path"]  # before it has loaded anything
        try:
            self.load(Path(body["model_path"]))
        except (OSError, SafetensorError, RuntimeError) as error:
            return _result(False, f"Failed to get weights iterator: {error}.")
        if self.faults.breaks_off:
            return _result(False, "Failed to update weights: out of memory.\nRolling back to original weights.")
        if (version := body.get("weight_version")) is not None:
            self.scheduler.relabel(version)
        if body.get("flush_cache", True) and not self.scheduler.flush():
            return _result(
                False,
                "Weights were updated, but the cache was not flushed because requests are still running or queued. "
                "Retract or finish them, then call /flush_cache.",
            )
        return _result(True, f"Succeeded to update model weights. Weight version updated to {version}.")

    def load(self, folder: Path) -> None:
        (path,) = folder.glob("*.safetensors")
        state = {name: tensor.float() for name, tensor in load_file(path).items()}
        if self.faults.ignores_updates:
            return
        if self.faults.corrupts:
            state["model.norm.weight"] = torch.zeros_like(state["model.norm.weight"])
        if self.faults.breaks_off:
            state = {name: state[name] for name in sorted(state)[: len(state) // 2]}
        self.scheduler.model.load_state_dict(state, strict=not self.faults.breaks_off)

    async def _relabel(self, http: web.Request) -> web.Response:
        version = (await http.json())["new_version"]
        self.scheduler.relabel(version)
        return web.json_response({"success": True, "message": f"Weight version updated to {version}"})

    async def _check(self, _: web.Request) -> web.Response:
        """The released one hashes its own layout on the device; this one hashes ours: nobody may compare them."""
        total = hashlib.sha256(b"double")
        for name, tensor in sorted(self.scheduler.model.state_dict().items()):
            total.update(name.encode() + tensor.numpy().tobytes())
        answer = {"success": True, "message": "Success.", "per_engine_checksum": total.hexdigest(), "ranks": []}
        return web.json_response(answer)


@asynccontextmanager
async def serving(double: Double) -> AsyncIterator[str]:
    """Serve on a free loopback port; yields the URL."""
    runner = web.AppRunner(double.application(), handler_cancellation=False, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    loop = asyncio.ensure_future(double.scheduler.loop())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model only waits for the others
    host, port = runner.addresses[0][:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        loop.cancel()
        torch.set_num_threads(threads)
        await runner.cleanup()


@asynccontextmanager
async def connected(
    folder: Path, *, overlap: bool = False, faults: Faults | None = None, **options: Any
) -> AsyncIterator[tuple[SglangReplica, Double]]:
    """A replica on a fresh server that was started as ours are. `folder` holds its model; options: of the replica."""
    _, state = weights.load(folder, torch.float32)
    version = Version(number=0, digest=weights.digest(state))
    double = Double(folder, weight_version=label_of(version), api_key="secret", overlap=overlap, faults=faults)
    receiver = Receiver(label=f"test-{uuid.uuid4().hex[:8]}", base=folder, directory=folder.parent)
    async with (
        serving(double) as url,
        SglangReplica(
            "sglang", url, "secret", version=version, receiver=receiver, overlap=overlap, **options
        ) as replica,
    ):
        yield replica, double


async def _empty(_: web.Request) -> web.Response:
    return web.Response()


def _result(success: bool, message: str) -> web.Response:
    body = {"success": success, "message": message, "num_paused_requests": 0}
    return web.json_response(body, status=200 if success else 400)
