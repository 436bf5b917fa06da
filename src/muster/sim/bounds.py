"""Lower bounds on the time to a trainable batch: what no scheduler could beat with this work on these machines.

Law: pure; from numbers to numbers. A bound whose capacity is unknown is left out and named, never guessed.

For a fixed cohort of trajectories (o sampled tokens, p uncached prompt tokens under perfect prefix reuse, s seconds
until the sandbox is ready, x of its own commands, v of verification), single-stream rates r1 (decode) and P1
(prefill), saturated rates R and P of all engines together, S sandbox slots, V verifier workers, M tokens of cache:

    engine   max(Σo / R, Σp / P)
    path     max(s + p/P1 + o/r1 + x + v)               the longest trajectory, alone on the machine
    slots    Σ(s + o/r1 + x + v) / S                    without o/r1 or v if the slot is free in the meantime
    kv       Σ over turns of context · (o_turn/r1) / M  plus context · x if the cache is pinned during commands
    verify   Σv / V
    boot     N / boot rate + min(path - s)
    cpu      Σcpu / cores

`score = TTB / max(bounds)`. Slot-bound list scheduling is at most 2 - 1/S times the optimum (Graham 1966), so a
score above 2 there is a bug; a score below 1 is possible only by selection, and is then biased.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """The work of one batch, one entry per trajectory. Optional arrays are None when nobody measured them.

    context_decode_N: Σ over turns of context tokens times tokens sampled in that turn (token²)
    context_tool_N: Σ over turns of context tokens times seconds of the command (token·s)
    """

    output_tokens_N: Array
    prompt_tokens_N: Array
    sandbox_s_N: Array
    tool_s_N: Array
    verify_s_N: Array
    context_decode_N: Array | None = None
    context_tool_N: Array | None = None
    cpu_s_N: Array | None = None

    def __len__(self) -> int:
        return len(self.output_tokens_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What there is to work with; None: unknown. Rates are tokens per second, all engines together."""

    stream_decode_rate: float | None = None  # r1
    decode_rate: float | None = None  # R
    stream_prefill_rate: float | None = None  # P1; taken as P when unknown
    prefill_rate: float | None = None  # P
    sandbox_slots: int | None = None  # S
    verifier_slots: int | None = None  # V
    kv_tokens: int | None = None  # M
    boots_per_s: float | None = None
    cores: int | None = None
    hold_while_thinking: bool = True  # the sandbox keeps its slot while the model samples
    hold_while_verifying: bool = True  # and while its final state is graded
    pin_cache_during_tools: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """`seconds` by bound's name; `unknown` names those that could not be computed."""

    seconds: Mapping[str, float]
    unknown: tuple[str, ...]

    @property
    def active(self) -> str | None:
        """The bound that holds the batch back: it says what to buy or change."""
        return max(self.seconds, key=lambda name: self.seconds[name], default=None)

    @property
    def limit_s(self) -> float | None:
        return max(self.seconds.values(), default=None)

    def score(self, ttb_s: float) -> float | None:
        """TTB over the highest bound; 1 is perfect. None when no bound is known or all are 0."""
        limit = self.limit_s
        return ttb_s / limit if limit else None


def lower_bounds(cohort: Cohort, capacity: Capacity) -> Bounds:
    """Every bound that `capacity` allows. Seconds."""
    if not len(cohort):
        return Bounds(seconds={}, unknown=())
    bounds: dict[str, float | None] = {
        "engine": _engine(cohort, capacity),
        "path": _path(cohort, capacity),
        "slots": _slots(cohort, capacity),
        "kv": _kv(cohort, capacity),
        "verify": _ratio(float(cohort.verify_s_N.sum()), capacity.verifier_slots),
        "boot": _boot(cohort, capacity),
        "cpu": _ratio(float(cohort.cpu_s_N.sum()), capacity.cores) if cohort.cpu_s_N is not None else None,
    }
    return Bounds(
        seconds={name: value for name, value in bounds.items() if value is not None},
        unknown=tuple(name for name, value in bounds.items() if value is None),
    )


def _engine(cohort: Cohort, capacity: Capacity) -> float | None:
    decode = _ratio(float(cohort.output_tokens_N.sum()), capacity.decode_rate)
    prefill = _ratio(float(cohort.prompt_tokens_N.sum()), capacity.prefill_rate)
    known = [b for b in (decode, prefill) if b is not None]
    return max(known) if known else None


def _path(cohort: Cohort, capacity: Capacity) -> float | None:
    paths_N = _paths(cohort, capacity)
    return float(paths_N.max()) if paths_N is not None else None


def _paths(cohort: Cohort, capacity: Capacity) -> Array | None:
    if not capacity.stream_decode_rate:
        return None
    thinking_N = cohort.output_tokens_N / capacity.stream_decode_rate
    if rate := capacity.stream_prefill_rate or capacity.prefill_rate:
        thinking_N = thinking_N + cohort.prompt_tokens_N / rate
    return cohort.sandbox_s_N + thinking_N + cohort.tool_s_N + cohort.verify_s_N


def _slots(cohort: Cohort, capacity: Capacity) -> float | None:
    held_N = cohort.sandbox_s_N + cohort.tool_s_N
    if capacity.hold_while_verifying:
        held_N = held_N + cohort.verify_s_N
    if capacity.hold_while_thinking:
        if not capacity.stream_decode_rate:
            return None
        held_N = held_N + cohort.output_tokens_N / capacity.stream_decode_rate
    return _ratio(float(held_N.sum()), capacity.sandbox_slots)


def _kv(cohort: Cohort, capacity: Capacity) -> float | None:
    if cohort.context_decode_N is None or not capacity.stream_decode_rate:
        return None
    held = float(cohort.context_decode_N.sum()) / capacity.stream_decode_rate
    if capacity.pin_cache_during_tools:
        if cohort.context_tool_N is None:
            return None
        held += float(cohort.context_tool_N.sum())
    return _ratio(held, capacity.kv_tokens)


def _boot(cohort: Cohort, capacity: Capacity) -> float | None:
    paths_N = _paths(cohort, capacity)
    boots_s = _ratio(len(cohort), capacity.boots_per_s)
    if paths_N is None or boots_s is None:
        return None
    return boots_s + float((paths_N - cohort.sandbox_s_N).min())


def _ratio(amount: float, rate: float | None) -> float | None:
    return amount / rate if rate else None
