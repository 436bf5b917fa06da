"""Lower bounds on the time to a trainable batch: what no scheduler could beat with this work on these machines.

Law: pure; from numbers to numbers. Every bound is a relaxation: no schedule, however clairvoyant, beats it. A bound
whose capacity is unknown is left out and named, never guessed.

For a fixed cohort of N trajectories (o sampled tokens, p uncached prompt tokens under perfect prefix reuse, s seconds
until the sandbox is ready, x of its own commands, v of verification), S sandbox slots, V verifier workers:

    path     max(s + thinking + x + v)                  the longest trajectory, alone on the machine
    slots    Σh / S, h = s + thinking + x + v           without thinking or v if the slot is free in the meantime;
             or the k+1 shortest of the kS+1 longest    which some slot must hold one after the other
             + the shortest v                           if v comes after the slot
    verify   Σv / V + min(path - v)                     before the first nothing can be verified
    boot     max over j of (j-1) / boot rate + the j-th longest path        longest first is optimal (Jackson 1955)
    cpu      Σcpu / cores

What the engine adds depends on what is known of it. Rates alone, r1 and P1 of a single stream (decode, prefill), R and
P of all engines saturated, M tokens of cache:

    thinking p/P1 + o/r1
    engine   max(Σo / R, Σp / P)
    kv       Σ over turns of context · (o_turn/r1) / M  plus context · x if the cache is pinned during commands

With `Capacity.server` and `Cohort.turns` all three are those of its physics, at the contexts that each turn really has,
and there is one more: `joint`, the least time for which batch, slots and cache suffice at once (`engine_bounds`).

`score = TTB / max(bounds)`. Slot-bound list scheduling is at most 2 - 1/S times the optimum (Graham 1966), so a
score above 2 there is a bug; a score below 1 is possible only by selection, and is then biased.

What a score above 1 may be made of, apart from bad scheduling. The bounds know how long each trajectory will be, and a
scheduler does not: one that starts the longest last adds up to its length to `slots`. And `path` has the longest one
alone on its engine, where in truth it shares each step with whoever is on its replica: among D rows with contexts like
its own it decodes (step_s + D·w) / (step_s + w) times as long, w = row_s + context_s · context. On two H100 with a 32B
model that is 2.0 for eight rows of 40 k tokens; when thinking is half of the path, company to its end makes 1.5. Where
more trajectories are long than there are replicas, `joint` counts this; for fewer, only less company helps, or faster
engines: 1.2 is then out of reach for whoever cannot know which one is the longest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from muster.engine.config import EmulatedEngineConfig
from muster.observe.bounds.physics import EngineWork
from muster.observe.bounds.turns import Turns

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """The work of one batch, one entry per trajectory. Optional arrays are None when nobody measured them.

    context_decode_N: Σ over turns of context tokens times tokens sampled in that turn (token²)
    context_tool_N: Σ over turns of context tokens times seconds of the command (token·s)
    turns: all of this turn by turn, for the physics of an engine
    """

    output_tokens_N: Array
    prompt_tokens_N: Array
    sandbox_s_N: Array
    tool_s_N: Array
    verify_s_N: Array
    context_decode_N: Array | None = None
    context_tool_N: Array | None = None
    cpu_s_N: Array | None = None
    turns: Turns | None = None

    def __len__(self) -> int:
        return len(self.output_tokens_N)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Capacity of a run or world; None: unknown. Rates are tokens per second, all engines together."""

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
    server: EmulatedEngineConfig | None = None  # each of `replicas`; its timing takes the place of the rates
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Lower bounds: `seconds` by name; `unknown` names those that could not be computed."""

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


def lower_bounds(cohort: Cohort, capacity: Capacity, *, overlapping: bool = False) -> Bounds:
    """Every bound that `capacity` allows. Seconds.

    overlapping: batches are collected while others are, and the time between two of them has only the bounds of what
    each must take of the machines: nothing of it begins or ends with the batch.

    Example: `lower_bounds(cohort, Capacity(sandbox_slots=64, server=preset("h100-llama-8b"), replicas=8)).active`
    """
    if not len(cohort):
        return Bounds(seconds={}, unknown=())
    work = _work(cohort, capacity)
    if overlapping:
        return _known(_shares(cohort, capacity, work))
    thinking_N = work.alone_s_N if work else _thinking(cohort, capacity)
    paths_N = None if thinking_N is None else cohort.sandbox_s_N + thinking_N + cohort.tool_s_N + cohort.verify_s_N
    bounds: dict[str, float | None] = {
        "engine": work.busy_s if work else _engine(cohort, capacity),
        "path": None if paths_N is None else float(paths_N.max()),
        "slots": _slots(cohort, capacity, thinking_N, _shared(capacity, work)),
        "kv": _kv(cohort, capacity, work),
        "verify": _verify(cohort, capacity, paths_N),
        "boot": _boot(capacity, paths_N),
        "cpu": _ratio(float(cohort.cpu_s_N.sum()), capacity.cores) if cohort.cpu_s_N is not None else None,
    }
    if work and paths_N is not None:
        bounds["joint"] = _joint(cohort, capacity, work, paths_N)
    return _known(bounds)


def _known(bounds: Mapping[str, float | None]) -> Bounds:
    return Bounds(
        seconds={name: value for name, value in bounds.items() if value is not None},
        unknown=tuple(name for name, value in bounds.items() if value is None),
    )


def _shares(cohort: Cohort, capacity: Capacity, work: EngineWork | None) -> dict[str, float | None]:
    """Share of each kind of machine that a batch takes, in seconds of all of that kind."""
    held_N = _whole(cohort, capacity, work.alone_s_N if work else _thinking(cohort, capacity))
    return {
        "engine": work.share_s if work else _engine(cohort, capacity),
        "slots": None
        if held_N is None
        else _ratio(float(held_N.sum()) + _shared(capacity, work), capacity.sandbox_slots),
        "kv": _kv(cohort, capacity, work),
        "verify": _ratio(float(cohort.verify_s_N.sum()), capacity.verifier_slots),
        "boot": _ratio(float(len(cohort)), capacity.boots_per_s),
        "cpu": _ratio(float(cohort.cpu_s_N.sum()), capacity.cores) if cohort.cpu_s_N is not None else None,
    }


def _shared(capacity: Capacity, work: EngineWork | None) -> float:
    """Slot seconds of computing what siblings share."""
    return work.shared_s if work and capacity.hold_while_thinking else 0.0


def _work(cohort: Cohort, capacity: Capacity) -> EngineWork | None:
    if cohort.turns is None or capacity.server is None or not len(cohort.turns.context_T):
        return None
    return EngineWork(cohort.turns, len(cohort), capacity.server, capacity.replicas)


def _thinking(cohort: Cohort, capacity: Capacity) -> Array | None:
    """Seconds that each trajectory spends in an engine of its own, from rates."""
    if not capacity.stream_decode_rate:
        return None
    thinking_N = cohort.output_tokens_N / capacity.stream_decode_rate
    if rate := capacity.stream_prefill_rate or capacity.prefill_rate:
        thinking_N = thinking_N + cohort.prompt_tokens_N / rate
    return thinking_N


def _engine(cohort: Cohort, capacity: Capacity) -> float | None:
    decode = _ratio(float(cohort.output_tokens_N.sum()), capacity.decode_rate)
    prefill = _ratio(float(cohort.prompt_tokens_N.sum()), capacity.prefill_rate)
    known = [b for b in (decode, prefill) if b is not None]
    return max(known) if known else None


def _held(cohort: Cohort, capacity: Capacity) -> Array:
    """Seconds that each trajectory holds its slot, apart from thinking."""
    held_N = cohort.sandbox_s_N + cohort.tool_s_N
    return held_N + cohort.verify_s_N if capacity.hold_while_verifying else held_N


def _whole(cohort: Cohort, capacity: Capacity, thinking_N: Array | None) -> Array | None:
    """The same with thinking, where a slot is held meanwhile; None: unknown."""
    held_N = _held(cohort, capacity)
    if not capacity.hold_while_thinking:
        return held_N
    return None if thinking_N is None else held_N + thinking_N


def _slots(cohort: Cohort, capacity: Capacity, thinking_N: Array | None, shared_s: float) -> float | None:
    slots, held_N = capacity.sandbox_slots, _whole(cohort, capacity, thinking_N)
    if not slots or held_N is None:
        return None
    total_s = float(held_N.sum()) + shared_s
    after_N = np.zeros(len(held_N)) if capacity.hold_while_verifying else np.sort(cohort.verify_s_N)
    if not capacity.hold_while_thinking:  # in pieces
        return total_s / slots + float(after_N[0])
    longest_N = np.sort(held_N)[::-1]
    in_a_row = range(1, (len(held_N) - 1) // slots + 1)
    rows = [float(longest_N[k * slots - k : k * slots + 1].sum() + after_N[0]) for k in in_a_row]
    return max([(total_s + float(after_N[:slots].sum())) / slots, *rows])


def _kv(cohort: Cohort, capacity: Capacity, work: EngineWork | None) -> float | None:
    if work is not None:
        pinned = work.pinned_alone
        if capacity.pin_cache_during_tools:
            pinned += float((work.turns.own_T * work.turns.tool_s_T).sum())
        return _ratio(pinned, capacity.kv_tokens)
    if cohort.context_decode_N is None or not capacity.stream_decode_rate:
        return None
    held = float(cohort.context_decode_N.sum()) / capacity.stream_decode_rate
    if capacity.pin_cache_during_tools:
        if cohort.context_tool_N is None:
            return None
        held += float(cohort.context_tool_N.sum())
    return _ratio(held, capacity.kv_tokens)


def _joint(cohort: Cohort, capacity: Capacity, work: EngineWork, paths_N: Array) -> float:
    """The highest of the whole cohort's and those of its longest trajectories alone."""
    longest_first_N = np.argsort(-paths_N, kind="stable")
    held_N = _held(cohort, capacity)
    after_N = np.zeros(len(cohort)) if capacity.hold_while_verifying else cohort.verify_s_N
    highest_s, size = 0.0, len(cohort)
    while size > 1:
        members_N = np.zeros(len(cohort), np.bool_)
        members_N[longest_first_N[:size]] = True
        part = work if size == len(cohort) else replace(work, turns=work.turns.among(members_N), count=size)
        slots = capacity.sandbox_slots if capacity.hold_while_thinking else None
        lanes = min(slots or size, size)
        # the last that each lane held is verified when it is free already
        after_s = float(np.sort(after_N[members_N])[:lanes].sum())
        held_s = float(held_N[members_N].sum()) + after_s
        highest_s = max(highest_s, part.joint_s(lanes=lanes, held_s=held_s, cache_tokens=capacity.kv_tokens))
        size = size * 3 // 4
    return highest_s


def _verify(cohort: Cohort, capacity: Capacity, paths_N: Array | None) -> float | None:
    if not capacity.verifier_slots:
        return None
    before_s = 0.0 if paths_N is None else float((paths_N - cohort.verify_s_N).min())
    return float(cohort.verify_s_N.sum()) / capacity.verifier_slots + before_s


def _boot(capacity: Capacity, paths_N: Array | None) -> float | None:
    if paths_N is None or not capacity.boots_per_s:
        return None
    starts_N = np.arange(len(paths_N)) / capacity.boots_per_s
    return float((starts_N + np.sort(paths_N)[::-1]).max())


def _ratio(amount: float, rate: float | None) -> float | None:
    return amount / rate if rate else None
