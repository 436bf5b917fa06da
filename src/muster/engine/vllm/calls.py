"""The requests inside a vLLM server, and what is counted of them. No vLLM here: outputs are read by their fields.

Law: a token is counted when it is read, once, with the version that is the label then; when a request ends, vLLM's own
spans are the last word. Times are split at vLLM's own time stamps.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from muster import clock
from muster.engine.port import EngineStatistics, InFlight, Pause
from muster.engine.timeline import Timeline
from muster.errors import UserError
from muster.types import Completion, DeviceState, Ints, Version


@dataclass(slots=True)
class Call:
    """One request, from the door to its end."""

    request_id: str
    replica: str
    prompt: list[int]
    arrived: float
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])
    finish: str = "abort"  # stop | length | abort, or what vLLM calls an end of another kind
    cached_tokens: int = 0
    inside: bool = False  # vLLM has it
    again: bool = False  # it is sent in once more, under another version
    stats: Any = None  # vLLM's time stamps of it
    paused_s: float = 0.0
    recompute_s: float = 0.0
    recomputes_from: float | None = None

    def enters_again(self) -> bool:
        """Whether it was only taken out to be sent in under another version; asked once."""
        again, self.again = self.again and not self.tokens, False
        return again

    def completion(self, finish: Literal["stop", "length", "abort"], *, start: int = 0) -> Completion:
        queue_s, prefill_s, decode_s = self._split()
        return Completion(
            tokens_T=np.array(self.tokens[start:], np.int32),
            logprobs_T=np.array(self.logprobs[start:], np.float32),
            versions_T=np.array(self.versions[start:], np.int32),
            finish=finish,
            cached_tokens=self.cached_tokens,
            queue_s=queue_s,
            prefill_s=prefill_s,
            recompute_s=self.recompute_s,
            decode_s=max(0.0, decode_s - self.paused_s - self.recompute_s),
            paused_s=self.paused_s,
            replica=self.replica,
        )

    def _split(self) -> tuple[float, float, float]:
        """Seconds waiting, prefilling, and from the first token to the newest."""
        s = self.stats
        if s is None or not s.scheduled_ts:
            return 0.0, 0.0, 0.0
        first = s.first_token_ts or s.scheduled_ts
        newest = max(s.last_token_ts, first)
        return max(0.0, s.scheduled_ts - s.queued_ts), max(0.0, first - s.scheduled_ts), newest - first


class Calls:
    """All requests of one server."""

    def __init__(self, replica: str, capacity: int, number: int) -> None:
        self.number = number  # the label of what is sampled now
        self._replica, self._capacity = replica, capacity
        self._calls: dict[str, Call] = {}
        self._timeline = Timeline(clock.now(), DeviceState.IDLE)
        self._paused_at: float | None = None
        self._prompt_tokens = self._cached_tokens = self._generated_tokens = self._recomputed_tokens = 0

    @property
    def inside(self) -> list[Call]:
        return [call for call in self._calls.values() if call.inside]

    @property
    def state(self) -> DeviceState:
        """Present state of the device."""
        return self._timeline.state

    def find(self, request_id: str) -> Call | None:
        return self._calls.get(request_id)

    @contextmanager
    def of(self, request_id: str, tokens: Ints) -> Generator[Call]:
        """For as long as somebody waits for the request."""
        if request_id in self._calls:
            raise UserError(f"request_id {request_id!r} is in use")
        call = Call(request_id, self._replica, tokens.tolist(), clock.now())
        self._calls[request_id] = call
        try:
            yield call
        finally:
            del self._calls[request_id]

    @contextmanager
    def inside_vllm(self, call: Call) -> Generator[None]:
        call.inside = True
        self._look(clock.now())
        try:
            yield
        finally:
            call.inside = False
            self._look(clock.now())

    def heard(self, call: Call, output: Any, now: float) -> None:
        """vLLM sampled tokens, or ended the request."""
        made = output.outputs[0]
        if not call.tokens and made.token_ids:
            call.cached_tokens = int(output.num_cached_tokens or 0)
            self._prompt_tokens += len(call.prompt)
            self._cached_tokens += call.cached_tokens
        if made.token_ids and call.recomputes_from is not None:
            call.recompute_s += now - call.recomputes_from
            call.recomputes_from = None
        call.stats = output.metrics
        for token, of_position in zip(made.token_ids, made.logprobs or (), strict=True):
            call.tokens.append(token)
            call.logprobs.append(of_position[token].logprob)
            call.versions.append(self.number)
        self._generated_tokens += len(made.token_ids)
        if made.finish_reason is not None:
            call.finish = made.finish_reason
            for span in made.weight_versions or ():
                call.versions[span.start : span.end] = [int(span.version)] * (span.end - span.start)
        self._look(now)

    def paused(self, now: float) -> int:
        """A pause begins; how many requests it finds inside."""
        self._paused_at = now
        return len(self.inside)

    def met(self, in_flight: InFlight, before: int) -> Pause:
        """The pause has taken effect."""
        self._look(clock.now())
        held = self.inside
        ended = before - len(held)
        return Pause(
            held=len(held),
            finished=ended if in_flight is InFlight.FINISH else 0,
            aborted=ended if in_flight is InFlight.ABORT else 0,
            held_tokens=_distinct([call for call in held if call.tokens]),
        )

    def resumed(self, now: float) -> None:
        assert self._paused_at is not None
        for call in self._calls.values():
            call.paused_s += now - max(self._paused_at, call.arrived)
            if call.recomputes_from is not None:
                call.recomputes_from = now
        self._paused_at = None
        self._look(now)

    def recompute(self) -> None:
        """Those held compute their keys and values again when they go on."""
        held = [call for call in self.inside if call.tokens]
        self._recomputed_tokens += _distinct(held)
        for call in held:
            call.recomputes_from = clock.now()

    def send_again(self, request_ids: Iterable[str]) -> None:
        """Those of them that are still here."""
        for request_id in request_ids:
            if (call := self._calls.get(request_id)) is not None:
                call.again = True

    def statistics(
        self,
        version: Version,
        *,
        kv_used_tokens: int,
        kv_capacity_tokens: int,
        preemptions: int,
        take_intervals: bool,
    ) -> EngineStatistics:
        running = min(len(self.inside), self._capacity)
        return EngineStatistics(
            replica=self._replica,
            version=version,
            running=running,
            waiting=len(self._calls) - running,
            capacity=self._capacity,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            recomputed_tokens=self._recomputed_tokens,
            generated_tokens=self._generated_tokens,
            kv_used_tokens=kv_used_tokens,
            kv_capacity_tokens=kv_capacity_tokens,
            preemptions=preemptions,
            intervals=self._timeline.take(clock.now()) if take_intervals else (),
        )

    def _look(self, now: float) -> None:
        """Update the device's state, as far as it shows from here: a prefill is a request without its first token."""
        inside = self.inside
        if self._paused_at is not None and now > self._paused_at:
            state = DeviceState.PUBLISH_PAUSE
        elif not inside:
            state = DeviceState.IDLE
        elif any(call.recomputes_from is not None for call in inside):
            state = DeviceState.RECOMPUTE
        elif any(not call.tokens for call in inside[: self._capacity]):
            state = DeviceState.PREFILL
        else:
            state = DeviceState.DECODE
        self._timeline.enter(state, now)


def _distinct(calls: list[Call]) -> int:
    """Tokens of prompts and replies, equal prompts counted once."""
    prompts = {tuple(call.prompt): len(call.prompt) for call in calls}
    return sum(prompts.values()) + sum(len(call.tokens) for call in calls)
