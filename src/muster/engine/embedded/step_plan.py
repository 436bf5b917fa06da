"""One forward step over many sequences at once, planned in numpy before any tensor is touched.

Law: the plan fixes which token attends to what; the decoder computes it, layer by layer, without a decision.

Each row feeds n >= 1 new tokens of one sequence: one when it decodes, more while its prompt is computed. All
rows' tokens lie end to end, T in total, so that the matrix products see one tall matrix. Attention is
computed in two parts, which their log-sum-exps merge exactly:

    shared   rows behind the same prefix, all their tokens against its keys in one call    (`SharedPart`)
    tail     own keys: single-token rows batched over neighbouring slots                   (`SingleBatch`)
             longer rows one by one, causal                                                (`LongRow`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from muster.engine.embedded.prefix_cache import Prefix, Slot
from muster.types import Ints

Index = npt.NDArray[np.int64]

SLOTS_PER_BATCH = 32
"""Single-token rows of slots inside one aligned window of this many are computed together."""
DENSE_FRACTION = 0.6
"""From this share of live slots on, computing the dead ones too beats copying the live ones together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Input of one sequence to this step: its tokens from `slot.filled` on."""

    slot: Slot
    tokens: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPart:
    """Tokens [start, stop) of the step attend to the first `length` tokens of `prefix`, all of them."""

    start: int
    stop: int
    prefix: Prefix
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleBatch:
    """Single-token rows over slots [first, last) (`gather` None) or over the slots in `gather`.

    tokens_B    which token of the step each computed slot serves; -1 for a slot that is computed in vain
    lengths_B   rows of the tail to attend to, the new one included
    """

    first: int
    last: int
    gather: Index | None
    tokens_B: Index
    lengths_B: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRow:
    """Tokens [start, stop) of the step, causal behind `before` rows already in the slot's tail."""

    start: int
    stop: int
    slot: int
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """T tokens; `last_R` is the position in the step of each row's last token, in the order of the feeds."""

    tokens_T: Index
    positions_T: Index
    slots_T: Index
    tail_rows_T: Index
    shared: tuple[SharedPart, ...]
    singles: tuple[SingleBatch, ...]
    longs: tuple[LongRow, ...]
    last_R: Index


def plan(feeds: Sequence[Feed]) -> StepPlan:
    """Lay the feeds out. Rows are ordered by prefix, so that each `SharedPart` is one slice."""
    order = sorted(range(len(feeds)), key=lambda i: _shared_key(feeds[i].slot))
    ordered = [feeds[i] for i in order]
    sizes = np.array([len(f.tokens) for f in ordered], dtype=np.int64)
    stops = np.cumsum(sizes)
    starts = stops - sizes
    last_R = np.empty(len(feeds), dtype=np.int64)
    last_R[order] = stops - 1
    filled = np.repeat([f.slot.filled for f in ordered], sizes)
    shared = np.repeat([f.slot.shared for f in ordered], sizes)
    positions_T = filled + np.arange(int(stops[-1])) - np.repeat(starts, sizes)
    return StepPlan(
        tokens_T=np.concatenate([f.tokens for f in ordered]).astype(np.int64),
        positions_T=positions_T,
        slots_T=np.repeat([f.slot.index for f in ordered], sizes),
        tail_rows_T=positions_T - shared,
        shared=_shared_parts(ordered, starts, stops),
        singles=_single_batches(ordered, starts),
        longs=tuple(
            LongRow(start=int(a), stop=int(b), slot=f.slot.index, before=f.slot.tail)
            for f, a, b in zip(ordered, starts, stops, strict=True)
            if b - a > 1
        ),
        last_R=last_R,
    )


def _shared_key(slot: Slot) -> tuple[int, int]:
    return (slot.prefix.id, slot.shared) if slot.prefix and slot.shared else (0, 0)


def _shared_parts(ordered: Sequence[Feed], starts: Index, stops: Index) -> tuple[SharedPart, ...]:
    parts: list[SharedPart] = []
    for (prefix_id, length), rows in groupby(range(len(ordered)), lambda i: _shared_key(ordered[i].slot)):
        members = list(rows)
        prefix = ordered[members[0]].slot.prefix
        if prefix_id and prefix:
            start, stop = int(starts[members[0]]), int(stops[members[-1]])
            parts.append(SharedPart(start=start, stop=stop, prefix=prefix, length=length))
    return tuple(parts)


def _single_batches(ordered: Sequence[Feed], starts: Index) -> tuple[SingleBatch, ...]:
    singles = [(f.slot.index, f.slot.tail + 1, int(a)) for f, a in zip(ordered, starts, strict=True)]
    singles = sorted(s for s, f in zip(singles, ordered, strict=True) if len(f.tokens) == 1)
    windows = groupby(singles, lambda s: s[0] // SLOTS_PER_BATCH)
    return tuple(_single_batch(np.array(list(rows), dtype=np.int64)) for _, rows in windows)


def _single_batch(rows_B3: Index) -> SingleBatch:
    slots, lengths, tokens = rows_B3.T
    first, last = int(slots[0]), int(slots[-1]) + 1
    if len(slots) < DENSE_FRACTION * (last - first):
        return SingleBatch(first=first, last=last, gather=slots, tokens_B=tokens, lengths_B=lengths)
    tokens_B = np.full(last - first, -1, dtype=np.int64)
    lengths_B = np.ones(last - first, dtype=np.int64)
    tokens_B[slots - first], lengths_B[slots - first] = tokens, lengths
    return SingleBatch(first=first, last=last, gather=None, tokens_B=tokens_B, lengths_B=lengths_B)
