"""vLLM's asynchronous engine as a `server.ServedEngine`, inside vLLM's own API process.

    generate ─► gate (open between pauses) ─► AsyncLLM, salted ─► outputs, token by token ─► Completion
    stage ─► the workers' threads      pause, commit, resume ─► `control` ─► AsyncLLM, workers

Law: what vLLM is asked, and how its answers read, is here; when, is decided in `control`. The version of a token
is vLLM's own label, made in its core; it changes only when all that was sampled under the old one has been read.
"""
# vllm is not installed where types are checked
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from typing import Any, Self, TypeVar

import numpy as np
from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
from vllm.v1.metrics.reader import get_metrics_snapshot

from muster import clock
from muster.engine.http import wire
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Scores, Staged
from muster.engine.vllm.calls import Call, Calls
from muster.engine.vllm.control import Control
from muster.errors import EngineError, UserError
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

_T = TypeVar("_T")

_POLL_S = 0.05
_WARM_UP_TOKENS = 8
_GAUGES = {"vllm:kv_cache_usage_perc": "used", "vllm:num_preemptions": "preemptions"}


class VllmServed:
    """Implements `server.ServedEngine`; `begun` makes it. Errors: `UserError` for what cannot be served, `EngineError`
    for the rest.
    """

    def __init__(self, engine: Any, *, name: str, version: Version) -> None:
        """engine: vLLM's `AsyncLLM`. version: what its workers hold and its label says."""
        self.name = name
        self._engine = engine
        self._config = engine.vllm_config
        self._vllm = _Vllm(engine, name)
        self._calls = Calls(name, int(self._config.scheduler_config.max_num_seqs), version.number)
        self._control = Control(name, self._vllm, self._calls, version)

    @classmethod
    async def begun(cls, engine: Any, *, name: str, number: int) -> Self:
        """Ask the workers what they hold, label it, and run one request. number: of the weights that vLLM loaded."""
        vllm = _Vllm(engine, name)
        answer = await vllm.ask("muster_begin", name)
        version = Version(number=number, digest=str(answer["digest"]))
        await vllm.label(number)
        # vLLM compiles its sampler at the first request: seconds that no rollout should wait
        warm_up = np.zeros(_WARM_UP_TOKENS, np.int32), Sampling(max_tokens=2), Session(id="")
        await cls(engine, name=name, version=version).generate("warm-up", *warm_up)
        return cls(engine, name=name, version=version)

    async def generate(self, request_id: str, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        """Cancelling aborts the request."""
        self._check(tokens)
        with self._calls.of(request_id, tokens) as call:
            while True:
                await self._control.gate.wait()
                if (completion := await self._sample(call, sampling)) is not None:
                    return completion

    async def progress(self, request_id: str, start: int) -> Completion | None:
        call = self._calls.find(request_id)
        return None if call is None or len(call.tokens) <= start else call.completion("abort", start=start)

    async def score(self, tokens: Ints, temperature: float) -> Scores:
        self._check(tokens)
        body = json.dumps({"token_ids": tokens.tolist(), "temperature": temperature})
        answer = await self._vllm.ask("muster_score", body)
        return Scores(logprobs_T=np.array(answer["logprobs"], np.float32), version=self._control.version)

    async def statistics(self, *, take_intervals: bool) -> EngineStatistics:
        """vLLM's core is asked first: if it is stuck behind an API that answers, this does not answer either."""
        await self._vllm.turns()
        cache = self._config.cache_config
        metrics = {_GAUGES[m.name]: m.value for m in get_metrics_snapshot() if m.name in _GAUGES}
        capacity_tokens = int(cache.num_gpu_blocks or 0) * int(cache.block_size)
        return self._calls.statistics(
            self._control.version,
            kv_used_tokens=round(metrics.get("used", 0.0) * capacity_tokens),
            kv_capacity_tokens=capacity_tokens,
            preemptions=int(metrics.get("preemptions", 0)),
            take_intervals=take_intervals,
        )

    async def stage(self, publication: Publication) -> Staged:
        if publication.version == self._control.version:
            return Staged()
        update = wire.publication_to_json(publication)["update_info"]
        await self._vllm.ask("muster_stage", json.dumps(update))
        while True:
            answer = await self._vllm.ask("muster_staged", str(publication.version.number))
            if answer["done"]:
                return wire.staged_from_json(answer)
            if not answer["busy"]:
                await clock.sleep(_POLL_S)

    async def pause(self, in_flight: InFlight, *, clear_cache: bool = False) -> Pause:
        pause = await self._control.pause(in_flight)
        if clear_cache:
            await self.reset_cache(preempt=True)
        return pause

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        return await self._control.commit(version, cache)

    async def resume(self) -> None:
        await self._control.resume()

    async def abort(self, ids: list[str] | None) -> int:
        found = [call.request_id for call in self._calls.inside if ids is None or call.request_id in ids]
        await self._vllm.abort(found)
        return len(found)

    async def reset_cache(self, *, preempt: bool) -> None:
        await self._vllm.reset_cache(preempt=preempt)

    async def paused(self) -> bool:
        return self._control.paused

    async def version(self) -> Version:
        return self._control.version

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
        salt = self._control.salt
        prompt = TokensPrompt(prompt_token_ids=call.prompt, cache_salt=salt)
        try:
            with self._calls.inside_vllm(call):
                async with aclosing(self._engine.generate(prompt, parameters, call.request_id)) as outputs:
                    async for output in outputs:
                        if output.outputs[0].token_ids and not call.tokens and salt != self._control.salt:
                            call.again = True  # it was on its way in when a commit took out those that were inside
                            break
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

    def _check(self, tokens: Ints) -> None:
        limit = int(self._config.model_config.max_model_len)
        if not 0 < len(tokens) < limit:
            raise UserError(f"token_ids: {len(tokens)} tokens; the engine takes 1 to {limit - 1}")


class _Vllm:
    """`control.Server`: vLLM's engine, with its death as an `EngineError`."""

    def __init__(self, engine: Any, name: str) -> None:
        self._engine, self._name = engine, name

    async def ask(self, method: str, argument: str) -> dict[str, Any]:
        """One call on every worker; the first one's answer. Raises `EngineError` with what a worker complains of."""
        answers = await self._guarded(self._engine.collective_rpc(method, args=(argument,)))
        for answer in answers:
            if "error" in answer:
                raise EngineError(f"{self._name}: {answer['error']}")
        return answers[0]

    async def turns(self) -> None:
        """Returns when the core's loop has come round."""
        await self._guarded(self._engine.is_paused())

    async def pause(self, in_flight: InFlight) -> None:
        await self._guarded(self._engine.pause_generation(mode=wire.pause_mode(in_flight), clear_cache=False))
        states = self._engine.output_processor.request_states
        while any(state.queue is not None and state.queue.output is not None for state in list(states.values())):
            await clock.sleep(0)

    async def resume(self) -> None:
        await self._guarded(self._engine.resume_generation())

    async def reset_cache(self, *, preempt: bool) -> None:
        if not await self._guarded(self._engine.reset_prefix_cache(preempt)):
            raise EngineError(f"{self._name}: running requests hold the cache: set reset_running_requests")

    async def change(self, version: Version) -> Version:
        answer = await self.ask("muster_commit", json.dumps({"number": version.number, "digest": version.digest}))
        return Version(number=version.number, digest=str(answer["digest"]))

    async def label(self, number: int) -> None:
        await self._guarded(self._engine.update_weight_version(str(number)))

    async def abort(self, request_ids: Sequence[str]) -> None:
        await self._guarded(self._engine.abort(list(request_ids)))

    async def _guarded(self, call: Awaitable[_T]) -> _T:
        try:
            return await call
        except EngineDeadError as error:
            raise EngineError(f"{self._name}: {error!r}") from None
