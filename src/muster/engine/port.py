"""The engine port: tokens in, tokens out, every sampled token with its log-probability and its version.

Two protocols, because two parts need different halves: rollouts generate; the publisher changes weights.
An adapter implements both (`Replica`). Cancelling a `generate` call aborts the request in the engine.

    rollout ──generate──►┐
                         ├── Replica
    publisher ──stage────┤   while serving
               pause     │   ┐
               commit    │   ├ `pause_s`, per replica
               resume ──►┘   ┘
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from muster.types import Completion, DeviceState, Floats, Ints, Publication, Sampling, Session, Version


class InFlight(StrEnum):
    """Effect of a pause on requests in flight."""

    HOLD = "hold"  # keep them where they are and go on after resume
    FINISH = "finish"  # pause takes effect when they have ended
    ABORT = "abort"  # end them now with finish="abort"; the caller continues from the kept tokens


class CachePolicy(StrEnum):
    """Effect of a commit on keys and values of the old weights.

    New requests never begin from them, whatever becomes of requests in flight; only SHARE lets them.
    """

    KEEP = "keep"  # held requests go on with them
    RECOMPUTE = "recompute"  # held requests are prefilled again under the new weights
    FLUSH = "flush"  # as RECOMPUTE, and their memory is given back before the new weights are placed
    SHARE = "share"  # as KEEP, and new requests may begin from them too


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Result of a pause: requests held, finished before it took effect, or aborted.

    held_tokens: how many tokens of the held requests have keys and values, beginnings that they share counted once.
    It is what a commit makes them compute again, unless they end before; 0 where the engine does not say.
    """

    held: int = 0
    finished: int = 0
    aborted: int = 0
    held_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Cost of staging: fetching the bytes, and making weights of them. Zeros when all was there already."""

    transfer_s: float = 0.0
    decode_s: float = 0.0
    size_bytes: int = 0  # fetched


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Log-probability, after temperature, of each token given those before it. `logprobs_T[0]` is 0."""

    logprobs_T: Floats
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInterval:
    """The device was in `state` during [start, end), seconds on `clock.now()`."""

    state: DeviceState
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """A frozen snapshot. Counters grow since the start of the replica.

    `intervals` holds what happened since the previous call, without overlap, oldest first.
    """

    replica: str
    version: Version
    running: int
    waiting: int
    capacity: int  # running requests that saturate the replica
    prompt_tokens: int
    cached_tokens: int  # of the prompt tokens, served from the prefix cache
    recomputed_tokens: int
    generated_tokens: int
    kv_used_tokens: int
    kv_capacity_tokens: int
    preemptions: int = 0  # requests that lost their place for want of memory, and were computed again
    intervals: tuple[DeviceInterval, ...] = ()


class Engine(Protocol):
    """Engine port for rollouts and evaluation. Errors: `EngineError` when the replica fails, is stale or times out."""

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion: ...

    async def score(self, tokens: Ints, *, temperature: float) -> Scores: ...

    async def statistics(self) -> EngineStatistics: ...


class WeightSink(Protocol):
    """Engine port for the publisher. Every call is idempotent per version and has a deadline inside the adapter."""

    name: str

    def supports(self, in_flight: InFlight, cache: CachePolicy) -> str | None:
        """Reason why this replica cannot publish so; None: it can. Pure: asked once, before the run starts."""
        ...

    async def stage(self, publication: Publication) -> Staged:
        """Fetch and decode the weights while serving goes on."""
        ...

    async def pause(self, in_flight: InFlight) -> Pause: ...

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        """Switch to the staged weights; returns the version with the digest of what the engine now holds."""
        ...

    async def resume(self) -> None: ...


class Replica(Engine, WeightSink, Protocol):
    """One engine replica, whole."""
