"""Requests that one adapter has under way at a server, and what came of them.

Law: no connection and no JSON here. A server does not say what its device does at each instant, so this file says what
can be seen from outside: a server with a request is decoding, one between `close_gate` and `open_gate` is paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from muster import clock
from muster.engine.port import EngineStatistics
from muster.engine.timeline import Timeline
from muster.errors import EngineError
from muster.types import Completion, DeviceState, Ints, Version


class Traffic:
    """Requests in flight, the gate in front of them, and counters."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._running: set[str] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._paused_s, self._paused_since = 0.0, 0.0
        self._timeline = Timeline(clock.now(), DeviceState.IDLE)
        self._recomputing: set[int] = set()  # versions whose commit made held requests compute their tokens again
        self.retractions = 0  # commits that did so
        self._prompt_tokens = self._cached_tokens = self._generated_tokens = self._recomputed_tokens = 0
        self._preemptions = 0

    @property
    def in_flight(self) -> int:
        return len(self._running)

    @property
    def paused_s(self) -> float:
        """Seconds so far in which the gate was closed."""
        return self._paused_s + (0.0 if self.gate.is_set() else clock.now() - self._paused_since)

    @contextmanager
    def running(self, rid: str) -> Generator[None]:
        self._running.add(rid)
        self._idle.clear()
        self._look()
        try:
            yield
        finally:
            self._running.discard(rid)
            if not self._running:
                self._idle.set()
            self._look()

    def close_gate(self) -> None:
        """From now on requests wait in front of the server."""
        assert self.gate.is_set(), "paused twice"
        self._paused_since = clock.now()
        self.gate.clear()
        self._look()

    def open_gate(self) -> None:
        """Idempotent."""
        self._paused_s = self.paused_s
        self.gate.set()
        self._look()

    async def idle(self, timeout_s: float) -> None:
        """Until nothing is in flight, or for so long."""
        with suppress(TimeoutError):
            async with clock.timeout(timeout_s):
                await self._idle.wait()

    def in_background(self, call: Coroutine[Any, Any, Any]) -> None:
        """Nobody waits for it, and nobody hears of its failure."""
        task = asyncio.ensure_future(_quietly(call))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Let calls in the background end; they have deadlines."""
        await asyncio.gather(*self._background)

    def updated(self, version: Version, *, recomputes: bool) -> None:
        self._recomputing.discard(version.number)
        if recomputes:
            self._recomputing.add(version.number)
            self.retractions += 1

    def count(self, tokens: Ints, completion: Completion, *, preemptions: int) -> None:
        """A reply that changed to a version of `updated` was computed again up to there, prompt and all."""
        self._preemptions += max(0, preemptions)
        versions = completion.versions_T.tolist()
        self._prompt_tokens += len(tokens)
        self._cached_tokens += completion.cached_tokens
        self._generated_tokens += len(versions)
        for at in range(1, len(versions)):
            if versions[at] != versions[at - 1] and versions[at] in self._recomputing:
                self._recomputed_tokens += len(tokens) + at

    def statistics(self, name: str, version: Version, loads: Sequence[Mapping[str, Any]]) -> EngineStatistics:
        """loads: of every data-parallel rank, as the server tells them."""

        def total(key: str) -> int:
            return sum(int(load[key]) for load in loads)

        return EngineStatistics(
            replica=name,
            version=version,
            running=total("num_running_reqs"),
            waiting=total("num_waiting_reqs"),
            capacity=total("max_running_requests"),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            recomputed_tokens=self._recomputed_tokens,
            generated_tokens=self._generated_tokens,
            kv_used_tokens=total("num_used_tokens"),
            kv_capacity_tokens=total("max_total_num_tokens"),
            preemptions=self._preemptions,
            intervals=self._timeline.take(clock.now()),
        )

    def _look(self) -> None:
        busy = DeviceState.DECODE if self._running else DeviceState.IDLE
        self._timeline.enter(busy if self.gate.is_set() else DeviceState.PUBLISH_PAUSE, clock.now())


async def _quietly(call: Coroutine[Any, Any, Any]) -> None:
    with suppress(EngineError):
        await call
