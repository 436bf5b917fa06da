"""The scheduler half of the SGLang double: a tiny Llama with a real cache of keys and values.

    waiting ─prefill─► running ─a token a step─► done          event_loop_normal: each step's tokens are read at once
                                                               event_loop_overlap: one step later

Law: as the released scheduler, where a client can tell: a cache keyed by salt, filled after a prefill and at the end;
events that say how many tokens a request had when the version changed; `in_place` leaves everything as it is, a step
that is under way included; `retract` reads that step, then puts what runs back into the queue without its cache.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from muster import clock
from muster.model.attention import block_mask, rope_tables, rotate
from muster.model.llama import Llama

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values (T, K, W) of each layer."""

STEP_S = 0.001


@dataclass(eq=False)
class Request:
    rid: str
    prompt: list[int]
    parameters: dict[str, Any]
    salt: str | None
    logprob_start: int
    asked: list[int] | None
    rng: np.random.Generator
    arrived: float
    output: list[tuple[int, float]] = field(default_factory=list)
    asked_logprobs: list[list[tuple[float, int, None]]] = field(default_factory=list)
    prompt_logprobs: list[tuple[float | None, int, None]] = field(default_factory=list)
    pending: list[tuple[int, float]] = field(default_factory=list)
    events: list[tuple[str, int]] = field(default_factory=list)
    cache: Cache | None = None
    cached_tokens: int | None = None
    entered: float = 0.0
    prefilled: float = 0.0
    retractions: int = 0
    aborted: str | None = None
    ended: asyncio.Future[dict[str, Any]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def tokens(self) -> list[int]:
        return self.prompt + [token for token, _ in self.output + self.pending]


class Scheduler:
    def __init__(self, model: Llama, version: str, *, max_running: int, overlap: bool, raw_logprobs: bool) -> None:
        self.model, self.version = model, version
        self.max_running, self.overlap, self.raw_logprobs = max_running, overlap, raw_logprobs
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.paused = False
        self.sampled_tokens = 0
        self._prefixes: list[tuple[str | None, list[int], Cache]] = []

    @property
    def used_tokens(self) -> int:
        return sum(len(request.tokens) for request in self.running) + sum(
            len(tokens) for _, tokens, _ in self._prefixes
        )

    async def loop(self) -> None:
        while True:
            await clock.sleep(STEP_S)
            if not self.paused:
                self._step()

    def pause(self, mode: str) -> None:
        self.paused = True
        if mode == "in_place":
            return
        self._read(self.running)
        for request in [r for r in self.running if not r.ended.done()]:
            request.cache, request.retractions = None, request.retractions + 1
            self.waiting.append(request)
        self.running = []

    def flush(self) -> bool:
        """Refused while something runs; what waits does not count in a pause."""
        if self.running or (self.waiting and not self.paused):
            return False
        self._prefixes = []
        return True

    def relabel(self, version: str) -> None:
        if version == self.version:
            return
        for request in self.waiting + self.running:
            if request.output:
                request.events.append((self.version, len(request.output)))
        self.version = version

    def abort(self, rid: str, abort_all: bool) -> None:
        """Abort: what waits ends at once; what runs, with the step after this."""
        chosen = [r for r in self.waiting + self.running if abort_all or r.rid.startswith(rid)]
        for request in chosen:
            if request in self.waiting:
                self.waiting.remove(request)
                self._end(request, {"type": "abort", "message": "Abort in waiting queue"})
            else:
                request.aborted = "Aborted"

    @torch.inference_mode()
    def _step(self) -> None:
        while self.waiting and len(self.running) < self.max_running:
            request = self.waiting.pop(0)
            self.running.append(request)
            self._prefill(request)
        launched = {request: self._decode(request) for request in self.running if request.cache is not None}
        if self.overlap:
            self._read(self.running)
        for request, sampled in launched.items():
            if not request.ended.done():
                request.pending.append(sampled)
        if not self.overlap:
            self._read(self.running)
        self.running = [request for request in self.running if not request.ended.done()]

    def _prefill(self, request: Request) -> None:
        tokens = request.tokens
        longest = min(len(tokens) - 1, request.logprob_start if request.logprob_start >= 0 else len(tokens))
        length, cache = self._match(request.salt, tokens[:longest])
        if request.cached_tokens is None:
            request.cached_tokens, request.entered = length, clock.now()
        logits_TV, request.cache = forward(self.model, tokens[length:-1], cache) if tokens[length:-1] else (None, cache)
        if request.logprob_start >= 0 and not request.prompt_logprobs:
            assert request.logprob_start == 0
            request.prompt_logprobs = [(None, tokens[0], None)]
            if logits_TV is not None:
                scores = logits_TV.log_softmax(-1)  # before temperature, whatever it is
                request.prompt_logprobs += [(float(s[t]), t, None) for s, t in zip(scores, tokens[1:], strict=True)]
        self._prefixes.append((request.salt, tokens[:-1], request.cache))
        request.prefilled = clock.now()

    def _match(self, salt: str | None, tokens: list[int]) -> tuple[int, Cache]:
        best: tuple[int, Cache] = (0, empty(self.model))
        for other, known, cache in self._prefixes:
            length = _common(known, tokens) if other == salt else 0
            if length > best[0]:
                best = length, [(k[:length], v[:length]) for k, v in cache]
        return best

    def _decode(self, request: Request) -> tuple[int, float]:
        assert request.cache is not None
        logits_TV, request.cache = forward(self.model, request.tokens[-1:], request.cache)
        temperature = request.parameters["temperature"] or 1.0
        scores = (logits_TV[-1] / temperature).log_softmax(-1)
        noise = torch.from_numpy(request.rng.gumbel(size=len(scores)).astype(np.float32))
        token = int((scores + noise if request.parameters["temperature"] else scores).argmax())
        if self.raw_logprobs:
            scores = logits_TV[-1].log_softmax(-1)
        if request.asked is not None:
            request.asked_logprobs.append([(float(scores[t]), t, None) for t in request.asked])
        return token, float(scores[token])

    def _read(self, requests: list[Request]) -> None:
        """Take in the tokens of the step that has run; end what has come to its end."""
        for request in requests:
            limit = request.parameters["max_new_tokens"]
            while request.pending and not request.ended.done():
                if limit:
                    request.output.append(request.pending.pop(0))
                    self.sampled_tokens += 1
                if request.aborted is not None:
                    reason = {"type": "abort", "message": request.aborted, "status_code": None, "err_type": None}
                    self._end(request, reason)
                elif self._stops(request):
                    self._end(request, {"type": "stop", "matched": request.output[-1][0]})
                elif len(request.output) >= limit:
                    self._end(request, {"type": "length", "length": limit})

    def _stops(self, request: Request) -> bool:
        if request.parameters.get("ignore_eos") or not request.output:
            return False
        stops = [*request.parameters.get("stop_token_ids", ()), *self.model.config.eos_tokens]
        return request.output[-1][0] in stops

    def _end(self, request: Request, reason: dict[str, Any]) -> None:
        tokens = [token for token, _ in request.output]
        if request.cache is not None:
            length = len(request.prompt) + len(tokens) - 1
            kept = [(k[:length], v[:length]) for k, v in request.cache]
            self._prefixes.append((request.salt, (request.prompt + tokens)[:length], kept))
        meta: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": reason,
            "prompt_tokens": len(request.prompt),
            "weight_version": self.version,
            "num_retractions": request.retractions,
            "queue_time": max(0.0, request.entered - request.arrived),
            "forward_entry_time": request.entered,
            "prefill_finished_time": request.prefilled,
            "input_token_logprobs": request.prompt_logprobs,
            "output_token_logprobs": [(logprob, token, None) for token, logprob in request.output],
            "completion_tokens": len(tokens),
            "cached_tokens": request.cached_tokens or 0,
            "weight_versions": self._spans(request),
            "e2e_latency": clock.now() - request.arrived,
        }
        if request.asked is not None:
            meta["output_token_ids_logprobs"] = request.asked_logprobs[: len(tokens)]
        if not request.ended.done():
            request.ended.set_result({"text": "", "output_ids": tokens, "meta_info": meta})

    def _spans(self, request: Request) -> list[dict[str, Any]]:
        """As `compute_weight_version_spans`: an event says up to which token the old version reaches."""
        spans: list[dict[str, Any]] = []
        for version, end in [*request.events, (self.version, len(request.output))]:
            if spans and end <= spans[-1]["end"]:
                continue
            if spans and spans[-1]["version"] == version:
                spans[-1]["end"] = end
                continue
            spans.append({"version": version, "start": spans[-1]["end"] if spans else 0, "end": end})
        return spans


def _common(a: list[int], b: list[int]) -> int:
    """Number of tokens that they begin with alike."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))


def empty(model: Llama) -> Cache:
    c = model.config
    return [(torch.zeros(0, c.kv_heads, c.head_width), torch.zeros(0, c.kv_heads, c.head_width))] * c.layers


def forward(model: Llama, tokens: list[int], cache: Cache) -> tuple[Tensor, Cache]:
    """Logits (T, V) of new tokens behind cached ones, and the cache with them. T tokens, H heads, W head width."""
    past, length = len(cache[0][0]), len(tokens)
    cos_TW, sin_TW = rope_tables(torch.arange(past, past + length), model.config.head_width, model.config.rope_theta)
    mask = block_mask(past, length)
    x_TD = model.model.embed_tokens(torch.tensor(tokens))
    longer: Cache = []
    for layer, (old_k, old_v) in zip(model.model.layers, cache, strict=True):
        attention, h_TD = layer.self_attn, layer.input_layernorm(x_TD)
        q, k, v = (p(h_TD).unflatten(-1, (-1, attention.head_width)) for p in _projections(attention))
        k, v = torch.cat((old_k, rotate(k, cos_TW, sin_TW))), torch.cat((old_v, v))
        longer.append((k, v))
        group = q.shape[1] // k.shape[1]
        q_HTW, k_HTW, v_HTW = (
            rotate(q, cos_TW, sin_TW).transpose(0, 1),
            k.transpose(0, 1).repeat_interleave(group, dim=0),
            v.transpose(0, 1).repeat_interleave(group, dim=0),
        )
        mixed = F.scaled_dot_product_attention(q_HTW[None], k_HTW[None], v_HTW[None], attn_mask=mask)[0]
        x_TD = x_TD + attention.o_proj(mixed.transpose(0, 1).flatten(1))
        x_TD = x_TD + layer.mlp(layer.post_attention_layernorm(x_TD))
    return model.logits(model.model.norm(x_TD)), longer


def _projections(attention: Any) -> tuple[Any, Any, Any]:
    return attention.q_proj, attention.k_proj, attention.v_proj
