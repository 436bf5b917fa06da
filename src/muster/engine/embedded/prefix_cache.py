"""Prefix cache: the cached keys and values that a new request may start from. Pure: decides, moves no tensor.

Law: a token's keys and values are computed once per salt while anyone can use them, and are never shared across
salts. A salt stands for the weights that computed them: who changes the weights changes it, unless told to share; a
version's number will not do, for a version that is rolled back and served again is not the cache of its first time.
Three places hold them:

    Prefix   an immutable run of tokens that several sequences begin with; attention reads it once for all
    slot     the private tail behind it, one per sequence; stays cached under its session when the turn ends
    nobody   then they are computed

A new sequence attaches to the longest prefix, copies what else it shares from another slot's tail, and, when
that copy would be long, the copy becomes a `Prefix` of its own for both. If a running neighbour is about to
compute more of the same tokens than is cached now, the newcomer waits for it: a group's prompt is
computed once even when all siblings arrive in the same instant.

    place(tokens) ─► Placement ─► the store carries it out ─► grow(...) as tokens are fed ─► release(slot)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from muster.types import Ints

PROMOTE_TOKENS = 96
"""Copying this many rows pays for one more attention call per layer and step; found by measurement."""
MIN_SHARED_TOKENS = 8
"""Below this, computing is as cheap as bookkeeping."""


@dataclass(slots=True, eq=False)
class Prefix:
    """An immutable shared run. `users` counts the slots that read it."""

    id: int
    tokens: Ints
    salt: int
    users: int = 0
    last_used: int = 0

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(slots=True, eq=False)
class Slot:
    """One sequence: `filled` tokens have keys and values, the first `shared` of them in `prefix`.

    `planned` is where a running sequence's `filled` will be once its prompt is computed.
    """

    index: int
    filled: int = 0
    planned: int = 0
    prefix: Prefix | None = None
    shared: int = 0
    running: bool = False
    session: str = ""
    salt: int = -1
    last_used: int = 0

    @property
    def tail(self) -> int:
        """Rows of the slot's own storage in use."""
        return self.filled - self.shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebase:
    """Move the first `length` tokens of `slot` into the new `prefix`; its tail then starts behind them."""

    slot: Slot
    prefix: Prefix
    old_prefix: Prefix | None
    old_shared: int
    old_filled: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCopy:
    """Copy token rows [start, stop) from `source`'s tail, which starts at token `source_shared`."""

    source: int
    source_shared: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Place of a request. Carry out `rebase`, then `copy` into `slot`; `cached` tokens need no computing."""

    slot: Slot
    cached: int
    rebase: Rebase | None = None
    copy: RowCopy | None = None


@dataclass(slots=True)
class PrefixCache:
    """State of all slots and prefixes. Every method is instantaneous and single-threaded."""

    slot_count: int
    max_len: int
    prefix_capacity: int  # tokens over all prefixes
    slots: list[Slot] = field(init=False)
    prefixes: list[Prefix] = field(init=False, default_factory=list[Prefix])
    dropped: list[int] = field(init=False, default_factory=list[int])
    """Ids of prefixes whose storage may go; whoever owns the storage empties this list."""

    _tokens_SC: Ints = field(init=False)
    _tick: int = field(init=False, default=0)
    _next_prefix: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.slots = [Slot(index=i) for i in range(self.slot_count)]
        self._tokens_SC = np.full((self.slot_count, self.max_len), -1, dtype=np.int32)

    @property
    def used_tokens(self) -> int:
        """Token rows that hold keys and values."""
        return sum(s.tail for s in self.slots) + sum(len(p) for p in self.prefixes)

    def place(self, tokens: Ints, session: str, salt: int) -> Placement | None:
        """A place for a sequence of `tokens`, or None: no slot is free, or a neighbour is computing its prefix.

        At least the last token is left to compute, because its logits are wanted.
        """
        limit = len(tokens) - 1
        common_S = self._common(tokens, limit)
        filled_S = np.minimum(common_S, self._lengths("filled", salt))
        prefix, attached = self._best_prefix(tokens, limit, salt)
        source = self.slots[int(filled_S.argmax())]
        best = max(int(filled_S[source.index]), attached)
        if int(np.minimum(common_S, self._lengths("planned", salt)).max()) > best + MIN_SHARED_TOKENS:
            return None
        own = self._idle_of(session)
        if own is not None and best and filled_S[own.index] >= best:
            return self._continue(own, tokens, best)
        target = own or self._free_slot(keep=source)
        if target is None:
            return None
        if target is source and best > attached:  # the only idle slot is the one to read from: take it over
            return self._continue(target, tokens, best, session=session)
        self._empty(target)
        if best < MIN_SHARED_TOKENS:
            prefix, attached, best = None, 0, 0
        return self._attach(target, tokens, session, salt, source, best, prefix, attached)

    def grow(self, slot: Slot, token: int) -> None:
        """Note a token appended to the sequence in `slot` (its keys and values come later)."""
        if slot.planned < self.max_len:
            self._tokens_SC[slot.index, slot.planned] = token
            slot.planned += 1

    def release(self, slot: Slot, *, keep: bool) -> None:
        """The sequence stopped running. `keep` its cache for the session's next turn, or free it."""
        slot.running = False
        slot.planned = slot.filled
        slot.last_used = self._now()
        if not keep:
            self._empty(slot)

    def drop_idle(self) -> None:
        """Forget everything that no running sequence reads."""
        for slot in self.slots:
            if not slot.running:
                self._empty(slot)
        for prefix in [p for p in self.prefixes if p.users == 0]:
            self._drop(prefix)

    def _attach(
        self,
        target: Slot,
        tokens: Ints,
        session: str,
        salt: int,
        source: Slot,
        best: int,
        prefix: Prefix | None,
        attached: int,
    ) -> Placement:
        rebase = copy = None
        new = None
        if best - attached >= PROMOTE_TOKENS:
            new = self._new_prefix(tokens[:best], salt, keep=prefix)
        if new is not None:
            rebase = self._rebase(source, new, best)
            prefix, attached = new, best
        elif best > attached:
            copy = RowCopy(source=source.index, source_shared=source.shared, start=attached, stop=best)
        self._start(target, tokens, session, salt)
        target.prefix, target.shared = (prefix, attached) if prefix else (None, 0)
        target.filled = best
        if prefix:
            prefix.users += 1
            prefix.last_used = self._now()
        return Placement(slot=target, cached=best, rebase=rebase, copy=copy)

    def _continue(self, slot: Slot, tokens: Ints, cached: int, *, session: str | None = None) -> Placement:
        """Go on in the slot that already holds the first `cached` tokens."""
        if cached <= slot.shared:
            slot.shared = cached
        slot.filled = cached
        self._start(slot, tokens, slot.session if session is None else session, slot.salt)
        return Placement(slot=slot, cached=cached)

    def _start(self, slot: Slot, tokens: Ints, session: str, salt: int) -> None:
        slot.session, slot.salt, slot.running = session, salt, True
        slot.planned = len(tokens)
        slot.last_used = self._now()
        self._tokens_SC[slot.index, : len(tokens)] = tokens

    def _rebase(self, slot: Slot, prefix: Prefix, length: int) -> Rebase:
        move = Rebase(
            slot=slot,
            prefix=prefix,
            old_prefix=slot.prefix,
            old_shared=slot.shared,
            old_filled=slot.filled,
            length=length,
        )
        if slot.prefix:
            slot.prefix.users -= 1
        prefix.users += 1
        slot.prefix, slot.shared = prefix, length
        return move

    def _new_prefix(self, tokens: Ints, salt: int, keep: Prefix | None) -> Prefix | None:
        """Make room by forgetting unused prefixes but `keep`, oldest first; None when the rest is in use."""
        idle = [p for p in self.prefixes if p.users == 0 and p is not keep]
        used = sum(len(p) for p in self.prefixes) - sum(len(p) for p in idle)
        if used + len(tokens) > self.prefix_capacity:
            return None
        for prefix in sorted(idle, key=lambda p: p.last_used):
            if sum(len(p) for p in self.prefixes) + len(tokens) > self.prefix_capacity:
                self._drop(prefix)
        self._next_prefix += 1
        prefix = Prefix(self._next_prefix, tokens.copy(), salt, last_used=self._now())
        self.prefixes.append(prefix)
        return prefix

    def _idle_of(self, session: str) -> Slot | None:
        if not session:
            return None
        return next((s for s in self.slots if s.session == session and not s.running and s.filled), None)

    def _free_slot(self, keep: Slot) -> Slot | None:
        """An empty slot (lowest first), else the least recently used idle one, `keep` last of all."""
        idle = [s for s in self.slots if not s.running]
        return min(idle, key=lambda s: (s.filled > 0, s is keep, s.last_used, s.index), default=None)

    def _empty(self, slot: Slot) -> None:
        if slot.prefix:
            slot.prefix.users -= 1
        slot.prefix, slot.shared, slot.filled, slot.planned, slot.session = None, 0, 0, 0, ""
        slot.last_used = 0

    def _drop(self, prefix: Prefix) -> None:
        assert prefix.users == 0, "nobody reads a dropped prefix"
        self.prefixes.remove(prefix)
        self.dropped.append(prefix.id)

    def _common(self, tokens: Ints, limit: int) -> Ints:
        """Length of the common beginning with every slot, up to `limit`."""
        equal_SL = self._tokens_SC[:, :limit] == tokens[None, :limit]
        first = np.logical_not(equal_SL).argmax(axis=1) if limit else np.zeros(self.slot_count, np.int64)
        return np.where(equal_SL.all(axis=1), limit, first).astype(np.int32)

    def _lengths(self, kind: str, salt: int) -> Ints:
        lengths: Iterable[int] = (getattr(s, kind) if s.salt == salt else 0 for s in self.slots)
        return np.fromiter(lengths, dtype=np.int32, count=self.slot_count)

    def _best_prefix(self, tokens: Ints, limit: int, salt: int) -> tuple[Prefix | None, int]:
        best: tuple[Prefix | None, int] = (None, 0)
        for prefix in self.prefixes:
            length = min(limit, len(prefix))
            if prefix.salt != salt or length <= best[1]:
                continue
            different = np.flatnonzero(prefix.tokens[:length] != tokens[:length])
            common = int(different[0]) if len(different) else length
            if common > best[1]:
                best = (prefix, common)
        return best

    def _now(self) -> int:
        self._tick += 1
        return self._tick


def distinct_tokens(sequences: Iterable[Ints]) -> int:
    """Tokens in all sequences together, beginnings that several share counted once.

    Neighbours in sorted order share the longest beginnings, so that what each adds is what is behind that.
    Example: of `1 2 3`, `1 2 4` and `5` there are 5: 1, 2, 3, 4, 5
    """
    total, before = 0, np.zeros(0, np.int32)
    for raw in sorted(np.ascontiguousarray(tokens, dtype=np.int32).tobytes() for tokens in sequences):
        tokens = np.frombuffer(raw, np.int32)
        length = min(len(tokens), len(before))
        different = np.flatnonzero(tokens[:length] != before[:length])
        total += len(tokens) - (int(different[0]) if len(different) else length)
        before = tokens
    return total
