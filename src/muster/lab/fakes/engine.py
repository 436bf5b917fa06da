"""A replica that needs no model: replies come from a function, time from two rates.

Law: deterministic, and on the loop's own clock, so that a virtual hour of serving costs a few timers. It obeys
the same contract as the real engine: versions on tokens, pauses, prefix cache per version, exact repetition of
`generate`'s log-probabilities by `score`.

    generate: queue ─► prefill ─► decode ─► Completion      one timer per phase, cut short by a pause
    crash, restart; other faults: `faults`
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from muster import clock
from muster.engine.port import CachePolicy, DeviceInterval, EngineStatistics, InFlight, Pause, Scores, Staged
from muster.engine.updates import WeightUpdates
from muster.errors import EngineError
from muster.lab.fakes.request import FakeRequest, common, cut
from muster.lab.faults import INITIAL, InjectedFaults
from muster.types import Completion, DeviceState, Floats, Ints, Publication, Sampling, Session, Version

Policy = Callable[[Ints, Session, Version], Sequence[int]]
"""(prompt, session, version at the start) -> the reply's token ids, as long as it likes to be."""

_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: a usual multiplier for mixing bits


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRates:
    """Rates of a fake replica. Decoding does not slow down with company."""

    prefill_tokens_per_s: float = 2000.0
    decode_token_s: float = 0.02
    stage_s: float = 0.5
    commit_s: float = 0.05
    capacity: int = 64
    max_model_len: int = 4096
    cached_sequences: int = 256


def logprobs_of(tokens: Ints, version: Version, temperature: float, *, start: int = 0) -> Floats:
    """A made-up log-probability for each token from `start` on, a fixed function of its past, version and temperature.

    A polynomial hash of every prefix, keyed and mixed; whole arrays at a time, since the simulator lives on it.
    """
    if len(tokens) == 0:
        return np.zeros(0, dtype=np.float32)
    key = hashlib.blake2b(f"{version.digest}|{temperature}".encode(), digest_size=8).digest()
    past = np.cumsum((tokens.astype(np.uint64) + np.uint64(1)) * _powers(len(tokens)), dtype=np.uint64)[start:]
    mixed = (past ^ np.frombuffer(key, np.uint64)) * _ODD
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _ODD
    out = np.float32(-0.05) - (mixed >> np.uint64(56)).astype(np.float32) / np.float32(255.0)
    if start == 0:
        out[0] = 0.0
    return out


def _powers(length: int) -> npt.NDArray[np.uint64]:
    """1, r, r^2, … modulo 2^64, at least `length` of them computed once."""
    return _all_powers(1 << (length - 1).bit_length())[:length]


@lru_cache(maxsize=32)
def _all_powers(length: int) -> npt.NDArray[np.uint64]:
    return np.concatenate([np.ones(1, np.uint64), np.cumprod(np.full(length, _ODD))])[:length]


class FakeReplica:
    """Implements `engine.port.Replica`.

    Example: `FakeReplica("r0", policy=lambda tokens, session, version: [5, 6, 2])`
    """

    def __init__(
        self,
        name: str,
        *,
        policy: Policy,
        rates: FakeRates | None = None,
        version: Version = INITIAL,
    ) -> None:
        self.name = name
        self.faults = InjectedFaults(name)
        self._updates = WeightUpdates(name, version)
        self._policy, self._rates = policy, rates or FakeRates()
        self._slots = asyncio.Semaphore(self._rates.capacity)
        self._live: list[FakeRequest] = []
        self._cached: list[tuple[Ints, int]] = []  # with the salt under which they were computed
        self._change = asyncio.Event()
        self._waiting = 0
        self._counts = {"prompt": 0, "cached": 0, "recomputed": 0, "generated": 0}
        self._since = clock.now()
        self._intervals: list[DeviceInterval] = []

    def crash(self, reason: str = "killed") -> None:
        """Every pending and later call fails."""
        self.faults.crash(reason)
        self._notify()

    def restart(self) -> None:
        """Serve again, but nothing before a commit: a restarted replica holds unknown weights."""
        self.faults.restart()
        self._updates = WeightUpdates(self.name, INITIAL, salt=self._updates.salt)
        self._cached.clear()

    @property
    def version(self) -> Version:
        return self._updates.version

    # --- engine -------------------------------------------------------------------------------------

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        async with self.faults.during("generate"):
            self._check(tokens)
            self.faults.check_weights()
            arrived = clock.now()
            self._waiting += 1
            try:
                await self._slots.acquire()
            finally:
                self._waiting -= 1
            try:
                await self._serving()
                return await self._serve(tokens, sampling, session, arrived)
            finally:
                self._slots.release()
                if self._updates.pausing is not None:
                    self._notify()  # a pause may wait for this request to end

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        async with self.faults.during("score"):
            self._check(tokens)
            await self._sleep(len(tokens) / self._rates.prefill_tokens_per_s)
            return Scores(logprobs_T=logprobs_of(tokens, self.version, temperature), version=self.version)

    async def statistics(self) -> EngineStatistics:
        async with self.faults.during("statistics"):
            self._close_interval()
            intervals, self._intervals = tuple(self._intervals), []
            return EngineStatistics(
                replica=self.name,
                version=self.version,
                running=len(self._live),
                waiting=self._waiting,
                capacity=self._rates.capacity,
                prompt_tokens=self._counts["prompt"],
                cached_tokens=self._counts["cached"],
                recomputed_tokens=self._counts["recomputed"],
                generated_tokens=self._counts["generated"] + sum(map(self._made, self._live)),
                kv_used_tokens=sum(len(tokens) for tokens, _ in self._cached),
                kv_capacity_tokens=self._rates.cached_sequences * self._rates.max_model_len,
                intervals=intervals,
            )

    # --- weights ------------------------------------------------------------------------------------

    def supports(self, in_flight: InFlight, cache: CachePolicy) -> str | None:
        return None

    async def stage(self, publication: Publication) -> Staged:
        async with self.faults.during("stage"):
            if self._updates.holds(publication.version):
                return Staged()
            await self._sleep(self._rates.stage_s)
            self._updates.stage(publication.version)
            return Staged(decode_s=self._rates.stage_s, size_bytes=publication.size_bytes)

    async def pause(self, in_flight: InFlight) -> Pause:
        async with self.faults.during("pause"):
            updates, answer = self._updates, list[Pause]()
            if updates.pause(in_flight, answer.append):
                self._close_interval()
                met = len(self._live)
                for request in self._live:
                    request.aborted = in_flight is InFlight.ABORT
                self._notify()
                while in_flight is not InFlight.HOLD and self._live:
                    await self._changed()
                kind = {InFlight.HOLD: "held", InFlight.FINISH: "finished", InFlight.ABORT: "aborted"}[in_flight]
                # computed each on its own: the fake's recomputation does not share
                held_tokens = sum(len(r.sequence) + self._made(r) for r in self._live)
                if not answer:  # else another call waited for the same pause, and was first
                    updates.take_effect(Pause(**{kind: met}, held_tokens=held_tokens))
            return answer[0]

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        async with self.faults.during("commit"):
            if self._updates.may_commit(version):
                await self._sleep(self._rates.commit_s)
                self._updates.commit(version, cache)
                if cache is not CachePolicy.SHARE:
                    self._cached.clear()
                if cache in (CachePolicy.RECOMPUTE, CachePolicy.FLUSH):
                    for request in self._live:
                        request.recompute, request.salt = True, self._updates.salt
            self.faults.stale = False
            return self.version

    async def resume(self) -> None:
        async with self.faults.during("resume"):
            self._close_interval()
            self._updates.resume()
            self._notify()

    # --- inside -------------------------------------------------------------------------------------

    async def _serve(self, tokens: Ints, sampling: Sampling, session: Session, arrived: float) -> Completion:
        self._close_interval()
        room = min(sampling.max_tokens, self._rates.max_model_len - len(tokens))
        reply, finish = cut(self._policy(tokens, session, self.version), sampling.stop_tokens, room)
        request = FakeRequest(
            tokens=tokens,
            reply=np.array(reply, dtype=np.int32),
            salt=self._updates.salt,
            spent_s={"queue_s": clock.now() - arrived},
        )
        cached = self._lookup(tokens)
        self._counts["prompt"] += len(tokens)
        self._counts["cached"] += cached
        self._live.append(request)
        try:
            await self._spend(request, "prefill_s", (len(tokens) - cached) / self._rates.prefill_tokens_per_s)
            while len(request.versions) < len(reply) and not request.aborted:
                await self._decode(request, sampling.temperature)
        finally:
            self._close_interval()
            self._live.remove(request)
            self._remember(request.sequence, request.salt)
        return Completion(
            tokens_T=request.reply[: len(request.versions)],
            logprobs_T=np.array(request.logprobs, dtype=np.float32),
            versions_T=np.array(request.versions, dtype=np.int32),
            finish="abort" if request.aborted else finish,
            cached_tokens=cached,
            replica=self.name,
            **request.spent_s,
        )

    async def _decode(self, request: FakeRequest, temperature: float) -> None:
        """Decode until the reply or a pause ends it; the tokens made meanwhile are of the current version."""
        version = self.version
        wanted = len(request.reply) - len(request.versions)
        if request.recompute:
            request.recompute = False
            self._counts["recomputed"] += len(request.sequence)
            await self._spend(request, "recompute_s", len(request.sequence) / self._rates.prefill_tokens_per_s)
            return
        request.decoding_since = clock.now()
        await self._spend(request, "decode_s", wanted * self._rates.decode_token_s, once=True)
        made, request.decoding_since = self._made(request), None
        request.versions += [version.number] * made
        if made:
            sequence = request.sequence
            request.logprobs += logprobs_of(sequence, version, temperature, start=len(sequence) - made).tolist()
        self._counts["generated"] += made
        if not request.aborted:
            await self._held(request)

    def _made(self, request: FakeRequest) -> int:
        """Tokens decoded since the request last took stock."""
        if request.decoding_since is None:
            return 0
        steps = int((clock.now() - request.decoding_since) / self._rates.decode_token_s + 1e-6)
        return min(steps, len(request.reply) - len(request.versions))

    async def _spend(self, request: FakeRequest, phase: str, duration_s: float, *, once: bool = False) -> None:
        """Let `duration_s` of serving pass; pauses stretch it, or end it when `once`. An abort always ends it."""
        while duration_s > 0 and not request.aborted:
            started = clock.now()
            try:
                async with clock.timeout(duration_s):
                    while self._updates.pausing in (None, InFlight.FINISH) and not request.aborted:
                        await self._changed()
            except TimeoutError:
                pass
            spent = clock.now() - started
            duration_s -= spent
            request.spent_s[phase] = request.spent_s.get(phase, 0.0) + spent
            if once or duration_s <= 1e-9:
                return
            await self._held(request)

    async def _held(self, request: FakeRequest) -> None:
        started = clock.now()
        while self._updates.pausing is InFlight.HOLD and not request.aborted:
            await self._changed()
        request.spent_s["paused_s"] = request.spent_s.get("paused_s", 0.0) + clock.now() - started

    async def _serving(self) -> None:
        while self._updates.pausing is not None:
            await self._changed()

    async def _changed(self) -> None:
        """Wait for the next pause, resume, end of a request, or crash."""
        await self._change.wait()
        self.faults.check_alive()

    async def _sleep(self, delay_s: float) -> None:
        """Sleep, but fail at once when the replica dies meanwhile."""
        end = clock.now() + delay_s
        while (left := end - clock.now()) > 1e-9:
            try:
                async with clock.timeout(left):
                    await self._changed()
            except TimeoutError:
                return

    def _notify(self) -> None:
        """Wake everyone who waits for a change, once."""
        self._change.set()
        self._change = asyncio.Event()

    def _lookup(self, tokens: Ints) -> int:
        # a sibling that is being prefilled counts: its prompt is computed once
        seen = [*self._cached, *((r.tokens, r.salt) for r in self._live)]
        return max((common(known, tokens) for known, salt in seen if salt == self._updates.salt), default=0)

    def _remember(self, tokens: Ints, salt: int) -> None:
        self._cached.append((tokens, salt))
        del self._cached[: -self._rates.cached_sequences]

    def _check(self, tokens: Ints) -> None:
        if not 1 <= len(tokens) < self._rates.max_model_len:
            raise EngineError(f"{self.name}: token_ids: {len(tokens)} tokens do not fit", {"status": 400})

    def _close_interval(self) -> None:
        """Account the time since the last change of state to the state it was in."""
        now = clock.now()
        if now > self._since:
            state = DeviceState.DECODE if self._live else DeviceState.IDLE
            state = DeviceState.PUBLISH_PAUSE if self._updates.paused is not None else state
            self._intervals.append(DeviceInterval(state=state, start=self._since, end=now))
        self._since = now
