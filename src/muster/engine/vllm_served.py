"""vLLM's asynchronous engine as a `server.ServedEngine`, inside vLLM's own API process.

    generate ─► gate (open between pauses) ─► AsyncLLM, salted ─► outputs, token by token ─► Completion
    stage ─► the workers' threads      pause: gate shut ─► commit: workers change weights, then the label ─► resume

Law: a request enters vLLM with the salt of the last commit, never during a pause; one that has sampled nothing
when the version changes enters again, so that no old prefix is reused unless a commit shared it. The version of a token
is vLLM's own label, made in its core; it changes only when all that was sampled under the old one has been read.
"""
# pyright: reportMissingImports=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from typing import Any, Literal, TypeVar

import numpy as np
from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.reader import get_metrics_snapshot

from muster import clock
from muster.engine import wire
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Scores, Staged
from muster.engine.vllm_calls import Call, Calls
from muster.errors import EngineError, UserError
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

_T = TypeVar("_T")

_POLL_S = 0.05
_WARM_UP_TOKENS = 8
_MODES: Mapping[InFlight, Literal["keep", "wait", "abort"]] = {
    InFlight.HOLD: "keep",
    InFlight.FINISH: "wait",
    InFlight.ABORT: "abort",
}
_GAUGES = {"vllm:kv_cache_usage_perc": "used", "vllm:num_preemptions": "preemptions"}


class VllmServed:
    """Implements `server.ServedEngine`. Errors: `UserError` for what cannot be served, `EngineError` for the rest."""

    def __init__(self, engine: Any, *, name: str, number: int) -> None:
        """engine: vLLM's `AsyncLLM`. number: of the weights that it loaded. Call `begin` before anything else."""
        self.name = name
        self._engine = engine
        self._config = engine.vllm_config
        self._capacity = int(self._config.scheduler_config.max_num_seqs)
        self._calls = Calls(name, self._capacity, number)
        self._number = number
        self._version: Version | None = None
        self._salts = 0  # commits after which no prefix may be reused
        self._gate = asyncio.Event()
        self._pause: Pause | None = None
        self._pausing: asyncio.Future[Pause] | None = None

    async def begin(self) -> None:
        """Ask the workers what they hold, label it, and run one request."""
        answer = await self._ask("muster_begin", self.name)
        self._version = Version(number=self._number, digest=str(answer["digest"]))
        await self._engine.update_weight_version(str(self._number))
        self._gate.set()
        # vLLM compiles its sampler at the first request: seconds that no rollout should wait
        await self.generate("warm-up", np.zeros(_WARM_UP_TOKENS, np.int32), Sampling(max_tokens=2), Session(id=""))
        self._calls = Calls(self.name, self._capacity, self._number)

    async def generate(self, request_id: str, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        """Cancelling aborts the request."""
        self._check(tokens)
        with self._calls.of(request_id, tokens) as call:
            while True:
                await self._gate.wait()
                if (completion := await self._sample(call, sampling)) is not None:
                    return completion

    async def progress(self, request_id: str, start: int) -> Completion | None:
        call = self._calls.find(request_id)
        return None if call is None or len(call.tokens) <= start else call.completion("abort", start=start)

    async def score(self, tokens: Ints, temperature: float) -> Scores:
        self._check(tokens)
        body = json.dumps({"token_ids": tokens.tolist(), "temperature": temperature})
        answer = await self._ask("muster_score", body)
        return Scores(logprobs_T=np.array(answer["logprobs"], np.float32), version=await self.version())

    async def statistics(self, *, take_intervals: bool) -> EngineStatistics:
        cache = self._config.cache_config
        metrics = {_GAUGES[m.name]: m.value for m in get_metrics_snapshot() if m.name in _GAUGES}
        capacity_tokens = int(cache.num_gpu_blocks or 0) * int(cache.block_size)
        return self._calls.statistics(
            await self.version(),
            kv_used_tokens=round(metrics.get("used", 0.0) * capacity_tokens),
            kv_capacity_tokens=capacity_tokens,
            preemptions=int(metrics.get("preemptions", 0)),
            take_intervals=take_intervals,
        )

    async def stage(self, publication: Publication) -> Staged:
        if publication.version == self._version:
            return Staged()
        update = wire.publication_to_json(publication)["update_info"]
        await self._ask("muster_stage", json.dumps(update))
        while True:
            answer = await self._ask("muster_staged", str(publication.version.number))
            if answer["done"]:
                return wire.staged_from_json(answer)
            if not answer["busy"]:
                await clock.sleep(_POLL_S)

    async def pause(self, in_flight: InFlight, *, clear_cache: bool = False) -> Pause:
        """Pausing again is the same pause, also while it still waits for requests."""
        if self._pausing is None:
            self._pausing = asyncio.ensure_future(self._take_pause(in_flight))
        pause = await asyncio.shield(self._pausing)
        if clear_cache:
            await self.reset_cache(preempt=True)
        return pause

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        if version == self._version:
            return version
        if self._pause is None:
            raise EngineError(f"{self.name}: a version is committed to a paused engine; it is not paused")
        await asyncio.shield(asyncio.ensure_future(self._commit(version, cache)))
        return await self.version()

    async def resume(self) -> None:
        if self._pausing is None:
            return
        await self._guarded(self._engine.resume_generation())
        if not self._pausing.done():
            self._pausing.cancel()
        self._pausing = self._pause = None
        self._calls.resumed(clock.now())
        self._gate.set()

    async def abort(self, ids: list[str] | None) -> int:
        found = [call.request_id for call in self._calls.inside if ids is None or call.request_id in ids]
        await self._guarded(self._engine.abort(found))
        return len(found)

    async def reset_cache(self, *, preempt: bool) -> None:
        if not await self._guarded(self._engine.reset_prefix_cache(preempt)):
            raise EngineError(f"{self.name}: running requests hold the cache: set reset_running_requests")

    async def paused(self) -> bool:
        return self._pausing is not None

    async def version(self) -> Version:
        if self._version is None:
            raise EngineError(f"{self.name} is starting")
        return self._version

    async def _sample(self, call: Call, sampling: Sampling) -> Completion | None:
        """None: the version changed before anything was sampled."""
        parameters = SamplingParams(
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            stop_token_ids=list(sampling.stop_tokens),
            seed=sampling.seed,
            logprobs=0,
            ignore_eos=True,  # what ends a reply is in stop_token_ids
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = TokensPrompt(prompt_token_ids=call.prompt, cache_salt=str(self._salts))
        try:
            with self._calls.inside_vllm(call):
                async for output in self._engine.generate(prompt, parameters, call.request_id):
                    self._calls.heard(call, output, clock.now())
        except (VLLMClientError, ValueError) as error:
            raise UserError(f"token_ids: {error}") from None
        except (EngineDeadError, EngineGenerateError) as error:
            raise EngineError(f"{self.name}: {error!r}") from None
        if call.enters_again():
            return None
        if call.finish not in ("stop", "length", "abort"):
            raise EngineError(f"{self.name}: the request ended with {call.finish!r}")
        return call.completion(call.finish)

    async def _take_pause(self, in_flight: InFlight) -> Pause:
        self._gate.clear()
        before = self._calls.paused(clock.now())
        await self._guarded(self._engine.pause_generation(mode=_MODES[in_flight], clear_cache=False))
        await self._all_read()
        self._pause = self._calls.met(in_flight, before)
        return self._pause

    async def _commit(self, version: Version, cache: CachePolicy) -> None:
        await self._all_read()
        if cache is CachePolicy.FLUSH:
            await self.reset_cache(preempt=True)
        answer = await self._ask("muster_commit", str(version.number))
        self._version = Version(number=version.number, digest=str(answer["digest"]))
        self._calls.number = version.number
        await self._guarded(self._engine.update_weight_version(str(version.number)))
        if cache is CachePolicy.RECOMPUTE:
            await self.reset_cache(preempt=True)
        if cache in (CachePolicy.RECOMPUTE, CachePolicy.FLUSH):
            self._calls.recompute()
        if cache is not CachePolicy.SHARE:
            self._salts += 1  # not the version: one that comes back finds a cache that others have touched
            again = [call.request_id for call in self._calls.inside if not call.tokens]
            for request_id in again:
                self._calls.send_again(request_id)
            await self._guarded(self._engine.abort(again))

    async def _all_read(self) -> None:
        """Until each request's coroutine has read what vLLM's core had made of it."""
        states = self._engine.output_processor.request_states
        while any(state.queue is not None and state.queue.output is not None for state in list(states.values())):
            await clock.sleep(0)

    async def _ask(self, method: str, argument: str) -> dict[str, Any]:
        """One call on every worker; the first one's answer. Raises `EngineError` with what a worker complains of."""
        answers = await self._guarded(self._engine.collective_rpc(method, args=(argument,)))
        for answer in answers:
            if "error" in answer:
                raise EngineError(f"{self.name}: {answer['error']}")
        return answers[0]

    async def _guarded(self, call: Awaitable[_T]) -> _T:
        try:
            return await call
        except EngineDeadError as error:
            raise EngineError(f"{self.name}: {error!r}") from None

    def _check(self, tokens: Ints) -> None:
        limit = int(self._config.model_config.max_model_len)
        if not 0 < len(tokens) < limit:
            raise UserError(f"token_ids: {len(tokens)} tokens; the engine takes 1 to {limit - 1}")
