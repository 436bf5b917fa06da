"""The emulated server itself: queue, batch, cache, weights. Pure: no loop, no clock; every call says what time it is.

Law: between two strides the batch changes, within one it does not. A stride is one step while prompts are computed,
else as many decode steps as pass until a reply is complete or memory is short, and may be cut at any step's end when
something arrives. Blocks are counted once: in the prefix cache or as some request's own.

    submit ─► waiting ─admit─► prefilling ─► decoding ─► done(completion)
                 ▲ ▲               │             │
                 │ └── followers ◄─┤             │      wait for a neighbour that computes their beginning
                 └──── preempt ◄───┴─────────────┘      the newest, when the next step does not fit

    begin(now) ─► due ─► [cut(now)] ─► finish() ─► submit, abort, pause, commit, … ─► begin(now)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from muster.engine.config import EmulatedEngineConfig
from muster.engine.phases import Finish, Phase, RequestTime
from muster.engine.pieces import after
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause
from muster.engine.timeline import Timeline
from muster.engine.timing import Work
from muster.engine.updates import WeightUpdates
from muster.errors import UserError
from muster.lab.emulated.batch import Request, RunningBatch
from muster.lab.emulated.replies import Policy, made_up
from muster.lab.emulated.request import Done
from muster.lab.emulated.stride import Stride
from muster.types import Completion, DeviceState, Ints, Sampling, Session, Version


@dataclass(slots=True)
class _Counters:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0


class EmulatedCore:
    """One replica. Between `begin` and `finish` only `cut` and `statistics` may be called."""

    def __init__(
        self, config: EmulatedEngineConfig, *, name: str, version: Version, now: float, policy: Policy | None = None
    ) -> None:
        """policy: what requests are answered; None: made-up tokens until the room ends."""
        self.config, self.name, self.now = config, name, now
        self.updates = WeightUpdates(name, version)
        self.work = Work()
        self._policy = policy
        self._batch = RunningBatch(config)
        self._batch.cache.serve(self.updates.salt)
        self._live: dict[str, Request] = {}
        self._waiting: deque[Request] = deque()
        self._stride: Stride | None = None
        self._later: list[tuple[DeviceState, float]] = []  # states of the stride in flight, after its first
        self._counters = _Counters()
        self._timeline = Timeline(now, DeviceState.IDLE)

    # --- requests -----------------------------------------------------------------------------------

    def check(self, tokens: Ints) -> None:
        """Raises `UserError` when these tokens cannot be served."""
        longest = self.config.max_model_len - 1
        if not 1 <= len(tokens) <= longest:
            raise UserError(f"token_ids: {len(tokens)} tokens; this engine takes 1 to {longest} (max_model_len)")
        fresh = tokens[self._batch.cache.seen(tokens) :]
        if len(fresh) and fresh.view(np.uint32).max() >= self.config.vocabulary:  # a negative id is a large one
            raise UserError(f"token_ids: ids must lie in 0..{self.config.vocabulary - 1}")

    def submit(
        self, request_id: str, tokens: Ints, sampling: Sampling, session: Session, done: Done, arrived: float
    ) -> None:
        """Queue a checked request; `done` is called once, from `finish`, `abort` or `pause`."""
        assert request_id not in self._live, "whoever submits keeps the ids apart"
        time = RequestTime(arrived, Phase.PAUSED if self.paused else Phase.QUEUED)
        request = Request(request_id, tokens, sampling, session, done, time)
        self._live[request_id] = request
        self._waiting.append(request)

    def abort(self, ids: Iterable[str] | None = None) -> int:
        """End the named requests (all without names), each with what it has said so far. Unknown: ignored."""
        wanted = self._live if ids is None else ids
        ended = [self._live[i] for i in dict.fromkeys(wanted) if i in self._live]
        for request in ended:
            self._end(request, "abort")
        self._settle_pause()
        return len(ended)

    def progress(self, request_id: str, start: int, now: float) -> Completion | None:
        """Tokens of a live request from its token `start` on, those of the stride in flight too; None: nothing."""
        request = self._live.get(request_id)
        if request is None:
            return None
        if request.decoding:
            self._batch.decoding.settle(request)
            settled = request.made
            request.made += self._stride.steps_by(now) if self._stride else 0
        else:
            settled = request.made
        new = None
        if request.made > start:
            new = after(request.completion("abort", self.name, logprobs=self.config.logprobs), start)
        request.made = settled
        return new

    def statistics(self, now: float, *, take_intervals: bool) -> EngineStatistics:
        """A snapshot, steps that ended within the stride in flight included."""
        generated = self._counters.generated_tokens
        if (stride := self._stride) is not None:
            generated += stride.rows * stride.steps_by(now)
        return EngineStatistics(
            replica=self.name,
            version=self.version,
            running=len(self._batch.running),
            waiting=len(self._live) - len(self._batch.running),
            capacity=self.config.max_running,
            prompt_tokens=self._counters.prompt_tokens,
            cached_tokens=self._counters.cached_tokens,
            recomputed_tokens=self._counters.recomputed_tokens,
            generated_tokens=generated,
            kv_used_tokens=self._batch.used_tokens,
            kv_capacity_tokens=self.config.blocks * self.config.block_tokens,
            preemptions=self._counters.preemptions,
            intervals=self._timeline.take(now) if take_intervals else (),
        )

    @property
    def preemptions(self) -> int:
        """Number of times that a request lost its place for want of memory."""
        return self._counters.preemptions

    # --- weights ------------------------------------------------------------------------------------

    @property
    def version(self) -> Version:
        return self.updates.version

    @property
    def paused(self) -> bool:
        return self.updates.paused is not None

    def pause(self, in_flight: InFlight, effective: Callable[[Pause], None]) -> None:
        """Call `effective` once nothing steps any more; at once except for FINISH. Idempotent."""
        if not self.updates.pause(in_flight, effective):
            return
        if in_flight is InFlight.ABORT:
            started = [r for r in self._live.values() if r.marks]
            for request in started:
                self._end(request, "abort")
            self._take_effect(Pause(aborted=len(started)))
        elif in_flight is InFlight.HOLD:
            self._take_effect(Pause(held=len(self._batch.running), held_tokens=self._batch.computed_tokens()))
        self._settle_pause()

    def resume(self) -> None:
        """Idempotent."""
        if not self.updates.resume():
            return
        for request in self._live.values():
            request.time.resume(self.now)
        self._timeline.enter(DeviceState.IDLE, self.now)

    def commit(self, version: Version, cache: CachePolicy) -> Version:
        """Switch to the staged version; returns what is now held. Raises `EngineError`. Idempotent."""
        if not self.updates.may_commit(version):
            return self.version
        self.updates.commit(version, cache)
        for request in self._live.values():
            if request.decoding:
                self._batch.decoding.settle(request)
            if request.marks:
                request.mark(version)
        if cache in (CachePolicy.RECOMPUTE, CachePolicy.FLUSH):
            self._preempt_all()
        if cache is not CachePolicy.SHARE:
            self._batch.cache.serve(self.updates.salt)
        return self.version

    def reset_cache(self, *, preempt: bool) -> None:
        """Forget all idle cache; with `preempt` the running requests' too, which are then computed again."""
        if preempt:
            self._preempt_all()
        self._batch.cache.drop_idle()

    # --- strides ------------------------------------------------------------------------------------

    @property
    def due(self) -> float | None:
        """Time at which the stride in flight ends; None: there is none."""
        return self._stride.due if self._stride else None

    def begin(self, now: float) -> bool:
        """Start the next stride. False: nothing runs."""
        assert self._stride is None, "one stride at a time"
        self.now = max(self.now, now)
        if self.paused:
            return False
        preempted = self._preempt_for_next_step()
        if not preempted:
            self._admit()
        chunks, decoding = self._batch.chunks(), self._batch.decoding
        rows, context = decoding.rows, decoding.context
        if not rows and not chunks:
            self._timeline.enter(DeviceState.IDLE, self.now)
            return False
        steps = 1
        if not chunks and not preempted:  # what it shares with others was freed: it may fit after one step
            steps = decoding.steps_within(self._batch.free_blocks(), decoding.steps_to_end())
        stride = Stride.of(self.config.timing, self.now, steps, rows, context, chunks)
        (first, at), *self._later = stride.states(self._timeline.state)
        self._timeline.enter(first, at)
        self._stride = stride
        return True

    def cut(self, now: float) -> float:
        """End the stride in flight with the step that runs at `now`; returns when that is."""
        assert self._stride is not None, "only what runs can be cut"
        self._stride.cut(now)
        return self._stride.due

    def finish(self) -> None:
        """The stride in flight has ended: hand out tokens and completions. `now` is its end."""
        stride = self._stride
        assert stride is not None, "only what began can finish"
        self._stride = None
        self.now = stride.due
        for state, at in self._later:
            self._timeline.enter(state, at)
        ended: list[Request] = []
        if stride.rows:
            ended = self._batch.advance(stride.steps)
            self._counters.generated_tokens += stride.rows * stride.steps
            self.work.add_decode(stride.steps, stride.rows, stride.context)
        self.work.steps += stride.steps
        self.work.pairs += stride.pairs
        for request in ended:
            self._end(request, request.finish)
        for request, size in stride.chunks:
            self.work.prefill += size
            self._feed(request, size)
        self._settle_pause()

    # --- inside: the batch ----------------------------------------------------------------------------

    def _admit(self) -> None:
        """First come, first served, while there is a place, room in the step, and memory for the whole prompt.

        As vLLM's scheduler: who finds no room in the step waits, and keeps no memory meanwhile.
        """
        room = self._batch.room()
        while self._waiting and not self._batch.full and room > 0:
            request = self._waiting[0]
            if self.updates.pausing is not None and not (request.ended or request.marks):
                return  # a finishing pause lets in only what it preempted
            if not request.ended:
                tokens = request.sequence
                match = self._batch.cache.match(tokens, self.updates.salt)
                if match.owner is not None:
                    match.owner.followers.append(request)
                elif self._batch.fits(tokens, match):
                    self._batch.place(request, tokens, match)
                    room -= len(tokens) - match.cached
                    self._admitted(request, match.cached)
                else:
                    return
            self._waiting.popleft()

    def _admitted(self, request: Request, cached: int) -> None:
        if not request.marks:
            self._answer(request)
            request.cached_tokens = cached
            self._counters.prompt_tokens += len(request.prompt)
            self._counters.cached_tokens += cached
        recomputed = max(0, request.recomputes_to - cached)
        self._counters.recomputed_tokens += recomputed
        request.time.enter(Phase.RECOMPUTE if recomputed else Phase.PREFILL, self.now)

    def _answer(self, request: Request) -> None:
        """Ask the policy for the reply, and cut it."""
        prompt, sampling = request.prompt, request.sampling
        room = min(sampling.max_tokens, self.config.max_model_len - len(prompt))
        if self._policy is None:
            said: Ints = made_up(prompt, room, self.config.vocabulary, salt=request.session.id)
        else:
            said = _array(self._policy(prompt, request.session, self.version)[:room])
        stop = _first_of(said, sampling.stop_tokens)
        request.reply = said if stop is None else said[: stop + 1]
        request.finish = "length" if stop is None and len(said) == room else "stop"
        request.mark(self.version)

    def _feed(self, request: Request, size: int) -> None:
        """`size` more tokens of its prompt are computed; with the last of them it says its next token."""
        complete = self._batch.feed(request, size)
        self._wake_followers(request)
        if not complete:
            return
        assert request.reply is not None, "whoever is in the batch has a reply"
        says = min(1, len(request.reply) - request.made)
        self._counters.generated_tokens += says
        if request.made + says < len(request.reply):
            request.made += says
            self._batch.join(request)
            request.time.enter(Phase.DECODE, self.now)
        else:  # an empty reply, or its last token
            self._batch.vacate(request, keep=True)
            request.made += says
            self._end(request, request.finish)

    def _preempt_for_next_step(self) -> bool:
        """Take the newest out of the batch until one more token each fits. True: somebody had to go."""
        preempted = False
        running, decoding = self._batch.running, self._batch.decoding
        while decoding.rows and decoding.blocks_for(1) > self._batch.free_blocks():
            assert len(running) > 1, "one request always fits"
            self._preempt(next(reversed(running)), keep=True)
            self._counters.preemptions += 1
            preempted = True
        return preempted

    def _preempt_all(self) -> None:
        for request in reversed(list(self._batch.running)):
            self._preempt(request, keep=False)

    def _preempt(self, request: Request, *, keep: bool) -> None:
        computed = self._batch.vacate(request, keep=keep)
        self._wake_followers(request)
        request.recomputes_to = max(request.recomputes_to, computed)
        request.time.lose(self.now)
        self._waiting.appendleft(request)

    def _wake_followers(self, request: Request) -> None:
        if request.followers:
            self._waiting.extendleft(reversed(request.followers))
            request.followers = []

    def _end(self, request: Request, finish: Finish) -> None:
        if request.node is not None:
            self._batch.vacate(request, keep=True)
        self._wake_followers(request)
        request.ended = True
        request.time.end(self.now)
        del self._live[request.id]
        self.updates.ended()
        request.done(request.completion(finish, self.name, logprobs=self.config.logprobs))

    # --- inside: pauses, device -----------------------------------------------------------------------

    def _settle_pause(self) -> None:
        if not self.updates.drains or self._batch.running:
            return
        if not any(request.marks for request in self._live.values()):
            self._take_effect(Pause(finished=self.updates.finished))

    def _take_effect(self, pause: Pause) -> None:
        self._timeline.enter(DeviceState.PUBLISH_PAUSE, self.now)
        for request in self._live.values():
            request.time.pause(self.now)
        self.updates.take_effect(pause)


def _array(reply: Sequence[int] | Ints) -> Ints:
    return np.asarray(reply, dtype=np.int32)


def _first_of(tokens: Ints, stops: Sequence[int]) -> int | None:
    """Position of the first of `stops` in `tokens`."""
    hits = [int(at[0]) for stop in stops if len(at := np.flatnonzero(tokens == stop))]
    return min(hits, default=None)
