"""The embedded engine: continuous batching over a slot cache, weights that change under a pause.

    submit ─► waiting ─admit─► running ─┐ each step: every decoding row feeds one token,
                 ▲                      │            prompts feed up to `prefill_chunk_tokens` together
                 └──── preempt ◄────────┤
                                        ├─ schedule ─► run ─► postprocess ─► done(completion)
       pause: HOLD stops stepping; FINISH stops admitting and waits; ABORT ends what runs
       commit: only while paused; idle cache of the old weights goes, held requests keep theirs or are preempted

Law: single-threaded and synchronous; whoever owns the thread calls `step` while `busy`. Each sampled token
carries the version whose weights sampled it. Cache is shared between requests that began under one salt, and every
commit makes a new one, unless it is told to share.
"""
# torch leaves much of what it offers without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from muster import clock
from muster.engine.config import EmbeddedEngineConfig
from muster.engine.embedded.decoder import Decoder
from muster.engine.embedded.kv_store import KVStore
from muster.engine.embedded.packed_weights import PackedWeights
from muster.engine.embedded.prefix_cache import PrefixCache, distinct_tokens
from muster.engine.embedded.request import Request
from muster.engine.embedded.sampling import sample
from muster.engine.embedded.step_plan import Feed, plan
from muster.engine.phases import Finish, Phase, RequestTime
from muster.engine.pieces import after
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Scores
from muster.engine.timeline import Timeline
from muster.engine.updates import WeightUpdates
from muster.errors import EngineError, UserError
from muster.types import Completion, DeviceState, Ints, Sampling, Session, Version

Done = Callable[[Completion], None]


@dataclass(slots=True)
class _Counters:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0


class BatchingEngine:
    """One replica's core. Not thread-safe: see `engine.embedded.thread`."""

    def __init__(
        self, config: EmbeddedEngineConfig, weights: PackedWeights, *, name: str, version: int, started_at: float
    ) -> None:
        """started_at: when loading began, on `clock.now()`."""
        self.config, self.name = config, name
        self.weights = weights
        self._staged: PackedWeights | None = None
        self._updates = WeightUpdates(name, Version(number=version, digest=weights.digest))
        self._cache = PrefixCache(config.slots, config.max_model_len, config.prefix_capacity_tokens)
        self._store = KVStore(weights.config, config.slots, config.max_model_len, weights.dtype)
        self._decoder = Decoder(weights.config, self._store, weights.dtype)
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._done: dict[str, Done] = {}
        self._rng = np.random.default_rng(config.seed)
        self._counters = _Counters()
        self._timeline = Timeline(started_at)
        self._timeline.enter(DeviceState.IDLE, clock.now())

    # --- requests -----------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """`step` would do something."""
        if self.paused:
            return False
        return bool(self._running) or (bool(self._waiting) and self._updates.pausing is None)

    def submit(self, request_id: str, tokens: Ints, sampling: Sampling, session: Session, done: Done) -> None:
        """Queue a request; `done` is called once, from `step`, `abort` or `pause`. Raises `UserError`."""
        self._check(tokens)
        if request_id in self._done:
            raise UserError(f"request_id {request_id!r} is in use")
        rng = self._rng.spawn(1)[0] if sampling.seed is None else np.random.default_rng(sampling.seed)
        time = RequestTime(clock.now(), Phase.PAUSED if self.paused else Phase.QUEUED)
        longest = self.config.max_model_len
        request = Request.of(request_id, tokens, sampling, session, max_len=longest, rng=rng, time=time)
        self._done[request_id] = done
        self._waiting.append(request)

    def abort(self, ids: Iterable[str] | None = None) -> int:
        """End the named requests (all without names), each with what it sampled so far. Unknown: ignored."""
        wanted = None if ids is None else set(ids)
        ended = [r for r in [*self._running, *self._waiting] if wanted is None or r.id in wanted]
        for request in ended:
            self._end(request, "abort")
        self._settle()
        return len(ended)

    def progress(self, request_id: str, start: int) -> Completion | None:
        """Tokens that a live request has sampled from its token `start` on; None: nothing yet."""
        for request in [*self._running, *self._waiting]:
            if request.id == request_id and request.length - request.prompt_len > start:
                return after(request.completion("abort", self.name), start)
        return None

    def score(self, tokens: Ints, temperature: float) -> Scores:
        """As `engine.port.Engine.score`; also while paused, which is when a publication is checked."""
        self._check(tokens)
        before = self._timeline.state
        if not self.paused:
            self._timeline.enter(DeviceState.PREFILL, clock.now())
        tokens_T = torch.from_numpy(tokens.astype(np.int64))
        logprobs_T = self._decoder.score(self.weights, tokens_T, temperature).numpy()
        self._timeline.enter(before, clock.now())
        return Scores(logprobs_T=logprobs_T, version=self.version)

    def statistics(self, *, take_intervals: bool = True) -> EngineStatistics:
        """A snapshot; whoever takes the intervals gets those since they were last taken."""
        c = self._counters
        return EngineStatistics(
            replica=self.name,
            version=self.version,
            running=len(self._running),
            waiting=len(self._waiting),
            capacity=self.config.max_streams,
            prompt_tokens=c.prompt_tokens,
            cached_tokens=c.cached_tokens,
            recomputed_tokens=c.recomputed_tokens,
            generated_tokens=c.generated_tokens,
            kv_used_tokens=self._cache.used_tokens,
            kv_capacity_tokens=self.config.kv_capacity_tokens,
            intervals=self._timeline.take(clock.now()) if take_intervals else (),
        )

    # --- weights ------------------------------------------------------------------------------------

    @property
    def version(self) -> Version:
        return self._updates.version

    @property
    def paused(self) -> bool:
        return self._updates.paused is not None

    def pause(self, in_flight: InFlight, effective: Callable[[Pause], None]) -> None:
        """Call `effective` once nothing steps any more; at once except for FINISH. Idempotent."""
        if not self._updates.pause(in_flight, effective):
            return
        if in_flight is InFlight.ABORT:
            running = list(self._running)
            for request in running:
                self._end(request, "abort")
            self._take_effect(Pause(aborted=len(running)))
        elif in_flight is InFlight.HOLD:
            computed = [r.tokens[: r.slot.filled] for r in self._running if r.slot is not None]
            self._take_effect(Pause(held=len(computed), held_tokens=distinct_tokens(computed)))
        self._settle()

    def resume(self) -> None:
        """Idempotent."""
        if not self._updates.resume():
            return
        now = clock.now()
        for request in [*self._running, *self._waiting]:
            request.time.resume(now)
        self._timeline.enter(DeviceState.IDLE, now)

    def holds(self, version: Version) -> bool:
        """Whether `version` is current or staged already."""
        return self._updates.holds(version)

    def stage(self, version: Version, weights: PackedWeights) -> None:
        """Keep `weights` ready. Raises `EngineError` when they are not what `version` says."""
        if weights.digest != version.digest:
            raise EngineError(
                f"version {version.number}: staged weights have digest {weights.digest[:12]}, "
                f"published was {version.digest[:12]}"
            )
        self._updates.stage(version)
        self._staged = weights

    def commit(self, version: Version, cache: CachePolicy) -> Version:
        """Switch to the staged version; returns what is now held. Raises `EngineError`. Idempotent."""
        if not self._updates.may_commit(version):
            return self.version
        assert self._staged is not None, "a version is staged with its weights"
        if cache is not CachePolicy.SHARE:
            self.reset_cache(preempt=cache in (CachePolicy.RECOMPUTE, CachePolicy.FLUSH))
        if cache is CachePolicy.FLUSH:
            self._store.give_back()
        self.weights, self._staged = self._staged, None
        self._updates.commit(version, cache)
        return self.version

    def reset_cache(self, *, preempt: bool) -> None:
        """Forget all idle cache; with `preempt` the running requests' too, which are then computed again."""
        if preempt:
            held, self._running = self._running, []
            for request in held:
                self._preempt(request)
            self._waiting[:0] = held
        self._cache.drop_idle()
        self._store.forget(self._cache)

    # --- the loop -----------------------------------------------------------------------------------

    def step(self) -> None:
        """Admit what fits, compute one batch, hand out what ended."""
        if self._updates.pausing is None:
            self._admit()
        feeds = self._schedule()
        started = clock.now()
        tokens, logprobs = self._run(feeds)
        self._account(feeds, started)
        self._postprocess(feeds, tokens, logprobs)
        self._settle()

    def _admit(self) -> None:
        still: list[Request] = []
        for index, request in enumerate(self._waiting):
            if len(self._running) == self.config.max_streams:
                still.extend(self._waiting[index:])
                break
            if not self._place(request):
                still.append(request)
        self._waiting = still

    def _place(self, request: Request) -> bool:
        placement = self._cache.place(request.tokens, request.session.id, self._updates.salt)
        if placement is None:
            return False
        self._store.place(placement)
        self._store.forget(self._cache)
        request.slot = placement.slot
        if not request.started:
            request.started = True
            request.cached_tokens = placement.cached
            self._counters.prompt_tokens += request.prompt_len
            self._counters.cached_tokens += placement.cached
        recompute = request.recomputes_to > placement.cached
        self._counters.recomputed_tokens += max(0, request.recomputes_to - placement.cached)
        request.time.enter(Phase.RECOMPUTE if recompute else Phase.PREFILL, clock.now())
        self._running.append(request)
        return True

    def _schedule(self) -> list[tuple[Request, Feed]]:
        """All decoding rows, and prompts in order of admission while the chunk has room."""
        room = self.config.prefill_chunk_tokens
        feeds: list[tuple[Request, Feed]] = []
        for request in self._running:
            size = request.pending if request.time.phase is Phase.DECODE else min(request.pending, room)
            if request.time.phase is not Phase.DECODE:
                room -= size
            if size:
                assert request.slot is not None
                start = request.slot.filled
                feed = Feed(slot=request.slot, tokens=request.tokens_C[start : start + size])
                feeds.append((request, feed))
        return feeds

    def _run(self, feeds: list[tuple[Request, Feed]]) -> tuple[list[int], list[float]]:
        """Compute the step; a sampled token for each row that has fed all it had."""
        step = plan([feed for _, feed in feeds])
        rows = [i for i, (request, feed) in enumerate(feeds) if len(feed.tokens) == request.pending]
        logits_RV = self._decoder.logits(self.weights, step, rows)
        for _, feed in feeds:
            feed.slot.filled += len(feed.tokens)
        requests = [feeds[i][0] for i in rows]
        temperatures = torch.tensor([r.sampling.temperature for r in requests])
        uniforms = torch.tensor([r.rng.random() for r in requests], dtype=torch.float32)
        tokens_R, logprobs_R = sample(logits_RV, temperatures, uniforms)
        return tokens_R.tolist(), logprobs_R.tolist()

    def _postprocess(self, feeds: list[tuple[Request, Feed]], tokens: list[int], logprobs: list[float]) -> None:
        now = clock.now()
        sampled = iter(zip(tokens, logprobs, strict=True))
        for request, _ in feeds:
            if request.pending:
                continue
            token, logprob = next(sampled)
            finish = request.append(token, logprob, self.version.number)
            self._counters.generated_tokens += 1
            if request.time.phase is not Phase.DECODE:
                request.time.enter(Phase.DECODE, now)
            assert request.slot is not None
            self._cache.grow(request.slot, token)
            if finish is not None:
                self._end(request, finish)

    def _account(self, feeds: list[tuple[Request, Feed]], started: float) -> None:
        """Split the step's time by tokens: prefill, recompute, decode. Coarse, but it sums to the step."""
        spent_s = clock.now() - started
        total = sum(len(feed.tokens) for _, feed in feeds)
        at = started
        for phase in (Phase.PREFILL, Phase.RECOMPUTE, Phase.DECODE):
            tokens = sum(len(feed.tokens) for request, feed in feeds if request.time.phase is phase)
            if tokens:
                self._timeline.enter(DeviceState(phase.value), at)
                at += spent_s * tokens / total

    def _settle(self) -> None:
        """After requests ended: is a pause complete, is the device idle?"""
        if self._updates.drains and not self._running:
            self._take_effect(Pause(finished=self._updates.finished))
        if not self.paused and not self.busy:
            self._timeline.enter(DeviceState.IDLE, clock.now())

    def _take_effect(self, pause: Pause) -> None:
        now = clock.now()
        self._timeline.enter(DeviceState.PUBLISH_PAUSE, now)
        for request in [*self._running, *self._waiting]:
            request.time.pause(now)
        self._updates.take_effect(pause)

    def _preempt(self, request: Request) -> None:
        assert request.slot is not None
        request.recomputes_to = max(request.recomputes_to, request.slot.filled)
        self._cache.release(request.slot, keep=False)
        request.slot = None
        request.time.lose(clock.now())

    def _end(self, request: Request, finish: Finish) -> None:
        if request.slot is not None:
            self._cache.release(request.slot, keep=request.slot.salt == self._updates.salt)
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        request.time.end(clock.now())
        self._updates.ended()
        self._done.pop(request.id)(request.completion(finish, self.name))

    def _check(self, tokens: Ints) -> None:
        longest = self.config.max_model_len - 1
        if not 1 <= len(tokens) <= longest:
            raise UserError(f"token_ids: {len(tokens)} tokens; this engine takes 1 to {longest} (max_model_len)")
        if tokens.min() < 0 or tokens.max() >= self.weights.config.vocab_size:
            raise UserError(f"token_ids: ids must lie in 0..{self.weights.config.vocab_size - 1}")
