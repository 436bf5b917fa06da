"""Lower bounds from the physics of an engine whose step time is linear in its work (`engine.timing`).

    turns, server ─► EngineWork ─┬─► alone_s_N      each trajectory alone on an empty server
                                 ├─► busy_s         all of it, on all replicas together
                                 └─► joint_s        batch, slots and cache at once

Law: pure, and rigorous: relaxations of what every schedule must do, never a model of what a good one would do. Work is
counted under perfect prefix reuse. For a turn with context c (of which p must be computed whatever the cache holds) and
a reply of o tokens, the last step of its prefill says the first token, and each further one costs a row of a step:

    rows = o - 1      contexts C = Σ over rows of (c + 1, c + 2, …)      pairs = p · (c - p/2)
    alone = ⌈p / chunk⌉ · step_s + prefill_s · p + pair_s · pairs  +  rows · (step_s + row_s) + context_s · C

**busy**: prefill and decode add up in a step's time, so all n replicas together need at least

    E + steps · step_s,   E = Σ row_s · rows + context_s · C + prefill_s · p + pair_s · pairs
    steps ≥ max(Σrows / max_running, Σ(rows + p) / max_step_tokens, the most that one trajectory needs,
                Σ over rows of its context's own tokens / cache of a replica)      who decodes is in memory, all of it

**joint**: a batch cannot be large and quick at once. With N steps in time T, D rows in step k, and for each row
w = row_s + context_s · (its context), a step lasts at least step_s + Σw, so that

    engine   n·T ≥ E + R + N · step_s
    lanes    L·T ≥ H + R + Σ_k D · (step_s + Σw) ≥ H + R + step_s · Σrows + (Σ√w)² / N        (Cauchy-Schwarz, twice)
    cache    M·T ≥ tokens pinned by the rows, likewise, + Σ over kept gaps of (tokens · seconds of the command)

where L is how many can be under way at once (the slots, and never more than there are), H is what they do beside
decoding, and R the seconds of recomputing what the cache did not keep. A cache that knows the future would keep what is
expensive to compute and needed again soon: for a given T the least R is a fractional knapsack over the gaps between
turns (Dantzig 1957). The joint bound is the least T for which some N and R satisfy all three; each of them only becomes
easier as T grows. It holds for any part of the cohort as well: the longest fifty need quick steps, all at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from muster.engine.config import EmulatedEngineConfig
from muster.observe.bounds.turns import Turns

Array = npt.NDArray[np.float64]

_HALVINGS = 60
"""Of the interval that holds the joint bound: to the last bit of a float."""


@dataclass(frozen=True)
class EngineWork:
    """Work that `turns` of `count` trajectories ask of `replicas` servers of one kind.

    Example: `EngineWork(turns, count=256, server=preset("h100x2-qwen-32b"), replicas=8).busy_s`
    """

    turns: Turns
    count: int
    server: EmulatedEngineConfig
    replicas: int

    @cached_property
    def rows_T(self) -> Array:
        return np.maximum(0.0, self.turns.reply_T - 1)

    @cached_property
    def prompt_s(self) -> float:
        """All prefill, each prompt alone."""
        return float(self._prompt_s(self.turns.fresh_T).sum())

    @cached_property
    def alone_s_N(self) -> Array:
        """Seconds on an empty server, by trajectory, if others have computed what is shared."""
        timing = self.server.timing
        row_s_T = self.rows_T * (timing.step_s + timing.row_s)
        decode_s_T = row_s_T + timing.context_s * _run(self.rows_T, self.turns.context_T)
        return self._by_trajectory(self._prompt_s(self.turns.fresh_T - self.turns.shared_T) + decode_s_T)

    @cached_property
    def shared_s(self) -> float:
        """Seconds that computing what is shared adds to somebody."""
        turns = self.turns
        return float((self._prompt_s(turns.fresh_T) - self._prompt_s(turns.fresh_T - turns.shared_T)).sum())

    @cached_property
    def rows(self) -> float:
        return float(self.rows_T.sum())

    @cached_property
    def rows_s(self) -> float:
        """Σw over all rows."""
        contexts = float(_run(self.rows_T, self.turns.context_T).sum())
        return self.server.timing.row_s * self.rows + self.server.timing.context_s * contexts

    @cached_property
    def flow_s(self) -> float:
        """E: what does not depend on how rows are batched."""
        return self.rows_s + float(self._chunk_s(self.turns.fresh_T).sum())

    @cached_property
    def full_steps(self) -> float:
        """Steps of all replicas together if each were full."""
        tokens = self.rows + float(self.turns.fresh_T.sum())
        in_memory = self.pinned[0] / self.server.kv_capacity_tokens
        return max(self.rows / self.server.max_running, tokens / self.server.max_step_tokens, in_memory)

    @cached_property
    def steps(self) -> float:
        """The fewest that all replicas together can do with, when nothing but this is to do."""
        own_tokens_T = self.turns.fresh_T - self.turns.shared_T
        own_N = self._by_trajectory(self.rows_T + np.ceil(own_tokens_T / self.server.max_step_tokens))
        return max(self.full_steps, float(own_N.max()))

    @property
    def busy_s(self) -> float:
        """Seconds that the work takes all replicas together, at the best batching."""
        return (self.flow_s + self.steps * self.server.timing.step_s) / self.replicas

    @property
    def share_s(self) -> float:
        """The same beside other work, which fills its steps."""
        return (self.flow_s + self.full_steps * self.server.timing.step_s) / self.replicas

    @cached_property
    def roots(self) -> float:
        """Σ√w over all rows, from below: the root is concave, so a turn's mean is at least that of its ends."""
        timing, first_T = self.server.timing, self.turns.context_T + 1
        last_T = first_T + np.maximum(0.0, self.rows_T - 1)
        ends_T = np.sqrt(timing.row_s + timing.context_s * first_T) + np.sqrt(timing.row_s + timing.context_s * last_T)
        return float((self.rows_T * ends_T).sum()) / 2

    @cached_property
    def pinned(self) -> tuple[float, float]:
        """(Σ own tokens over all rows, token·seconds pinned by prefill alone)."""
        own_T = self.turns.own_T
        while_computed_T = np.maximum(0.0, own_T - self.turns.fresh_T) * self._prompt_s(self.turns.fresh_T)
        return float(_run(self.rows_T, own_T).sum()), float(while_computed_T.sum())

    @property
    def pinned_alone(self) -> float:
        """Token·seconds of cache that the own tokens of each trajectory fill while it alone is served."""
        timing, turns = self.server.timing, self.turns
        own, computing = self.pinned
        read_T = self.rows_T * (turns.own_T + 1) * (turns.context_T + 1)  # as if the context did not grow in a reply
        return (timing.step_s + timing.row_s) * own + timing.context_s * float(read_T.sum()) + computing

    @cached_property
    def gaps(self) -> tuple[Array, Array]:
        """For a cache that keeps the best gaps first: (token·seconds kept, seconds of recomputing that this saves),
        both cumulated from 0.

        Computing p of a gap's tokens again costs at least p · (prefill_s + pair_s · tokens / 2), whichever they are.
        """
        turns, timing = self.turns, self.server.timing
        follows_T = np.append(turns.trajectory_T[1:] == turns.trajectory_T[:-1], False)
        # what the next turn reads of its own: all that was computed, unless its context began anew
        held_T = np.minimum(turns.own_T + self.rows_T, np.append(turns.own_T[1:], 0.0))
        kept_G = np.maximum(0.0, held_T)[follows_T]
        seconds_G = turns.tool_s_T[follows_T]
        saved_G = kept_G * (timing.prefill_s + timing.pair_s * kept_G / 2)
        order_G = np.argsort(seconds_G / (timing.prefill_s + timing.pair_s * kept_G / 2), kind="stable")
        zero = np.zeros(1)
        return (
            np.concatenate([zero, np.cumsum((kept_G * seconds_G)[order_G])]),
            np.concatenate([zero, np.cumsum(saved_G[order_G])]),
        )

    def recomputed_s(self, token_s: float) -> float:
        """The least recomputing, in seconds of one replica, when `token_s` token·seconds can be kept between turns."""
        kept, saved = self.gaps
        return float(saved[-1] - np.interp(token_s, kept, saved))

    def joint_s(self, *, lanes: int, held_s: float, cache_tokens: int | None) -> float:
        """The least time for which engine, lanes and cache suffice at once.

        lanes: trajectories under way at once. held_s: seconds that lanes are held beside the engine's, all together.
        cache_tokens: of all replicas; None: ample.
        """
        low, high = 0.0, self.busy_s + 1.0
        while not self._suffices(high, lanes, held_s, cache_tokens):
            low, high = high, 2 * high
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if self._suffices(middle, lanes, held_s, cache_tokens):
                high = middle
            else:
                low = middle
        return low

    def _suffices(self, time_s: float, lanes: int, held_s: float, cache_tokens: int | None) -> bool:
        step_s = self.server.timing.step_s
        steps = (self.replicas * time_s - self.flow_s) / step_s
        if steps < self.steps:
            return False
        again_s = 0.0
        if cache_tokens is not None:
            own, computing = self.pinned
            pinned = step_s * own + self.server.timing.context_s * own * own / steps + computing
            if (room := cache_tokens * time_s - pinned) < 0:
                return False
            again_s = self.recomputed_s(room)
            steps -= again_s / step_s
            if steps < self.steps:
                return False
        spare = lanes * time_s - held_s - self.prompt_s - again_s - step_s * self.rows
        return spare >= self.rows_s and spare * steps >= self.roots * self.roots

    def _prompt_s(self, tokens_T: Array) -> Array:
        """The last so many tokens of each prompt alone, steps included."""
        return np.ceil(tokens_T / self.server.max_step_tokens) * self.server.timing.step_s + self._chunk_s(tokens_T)

    def _chunk_s(self, tokens_T: Array) -> Array:
        timing = self.server.timing
        return tokens_T * (timing.prefill_s + timing.pair_s * (self.turns.context_T - tokens_T / 2))

    def _by_trajectory(self, amounts_T: Array) -> Array:
        return np.bincount(self.turns.trajectory_T, weights=amounts_T, minlength=self.count).astype(np.float64)


def _run(rows_T: Array, before_T: Array) -> Array:
    """(before + 1) + (before + 2) + … + (before + rows)."""
    return rows_T * (before_T + 1) + rows_T * (rows_T - 1) / 2
