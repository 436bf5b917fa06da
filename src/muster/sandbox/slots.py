"""Who gets the next sandbox. Law: all capacity and warm-fork decisions are made here; this file knows no
sandbox, task or clock. Each event changes the state, and `decide` says what to do about it.

    waiting (first come, first served) ─► hand over a warm fork of that kind
                                       ─► boot, while a slot is free
                                       ─► evict a warm fork of another kind, then boot
    wanted (what comes next)           ─► warm a fork, while a slot is free and nobody waits

Used slots = leased + warm + being warmed + closing; never more than `capacity`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

Kind = Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """Give `ticket` a warm fork of its kind."""

    ticket: int
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """Let `ticket` boot its own."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """Start a fork of that kind ahead of need."""

    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Close the oldest warm fork of that kind; it counts as closing until `closed`."""

    kind: Kind


Action = HandOver | Boot | Warm | Evict


class Slots:
    """The state of one lane of the pool.

    Example: `s = Slots(capacity=1); s.request(1, "a"); s.decide()` gives `[Boot(ticket=1)]`
    """

    def __init__(self, *, capacity: int, warm: int = 0) -> None:
        self.capacity = capacity
        self.warm_limit = warm
        self.leased = 0
        self.closing = 0
        self.warm: Counter[Kind] = Counter()
        self.warming: Counter[Kind] = Counter()
        self._waiting: deque[tuple[int, Kind]] = deque()
        self._wanted: list[Kind] = []

    # --- events ---------------------------------------------------------------------------------------

    def request(self, ticket: int, kind: Kind) -> None:
        self._waiting.append((ticket, kind))

    def withdraw(self, ticket: int) -> None:
        """The one who waited has gone."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] != ticket)

    def want(self, kinds: Sequence[Kind]) -> None:
        """What comes next, in order, once per fork; replaces what was wanted before."""
        self._wanted = list(kinds)

    def warmed(self, kind: Kind, *, failed: bool = False) -> None:
        self.warming[kind] -= 1
        if failed:
            self._satisfied(kind)  # whoever needs it boots it, and hears why it fails
        else:
            self.warm[kind] += 1

    def released(self) -> None:
        """A lease ended; its sandbox is being closed."""
        self.leased -= 1
        self.closing += 1

    def lapsed(self) -> None:
        """A lease ended that holds no sandbox."""
        self.leased -= 1

    def closed(self) -> None:
        self.closing -= 1

    # --- the decision ---------------------------------------------------------------------------------

    def decide(self) -> list[Action]:
        """What to do now; the state already counts it as done or under way."""
        actions: list[Action] = []
        while self._waiting:
            ticket, kind = self._waiting[0]
            if self.warm[kind] > 0:
                self.warm[kind] -= 1
                actions.append(HandOver(ticket=ticket, kind=kind))
            elif self.warming[kind] > 0:
                break  # its fork is on the way
            elif self.used < self.capacity:
                actions.append(Boot(ticket=ticket))
            else:
                other = next((k for k, n in self.warm.items() if n > 0), None)
                if other is not None and self.closing == 0:
                    self._evict(other, actions)
                break
            self.leased += 1
            self._waiting.popleft()
            self._satisfied(kind)
        if not self._waiting:
            self._prepare(actions)
        return actions

    @property
    def used(self) -> int:
        return self.leased + self.closing + self.warm.total() + self.warming.total()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _prepare(self, actions: list[Action]) -> None:
        wanted = Counter(self._wanted[: self.warm_limit])
        for kind in [k for k, n in self.warm.items() if n > wanted[k]]:
            while self.warm[kind] > wanted[kind]:
                self._evict(kind, actions)
        for kind in wanted:
            while self.warm[kind] + self.warming[kind] < wanted[kind] and self.used < self.capacity:
                self.warming[kind] += 1
                actions.append(Warm(kind=kind))

    def _evict(self, kind: Kind, actions: list[Action]) -> None:
        self.warm[kind] -= 1
        self.closing += 1
        actions.append(Evict(kind=kind))

    def _satisfied(self, kind: Kind) -> None:
        if kind in self._wanted:
            self._wanted.remove(kind)
