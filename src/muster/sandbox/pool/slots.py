"""Sandbox slots: who gets the next sandbox. Law: all capacity and warm-fork decisions are made here; this file knows
no sandbox, task or clock. Each event changes the state, and `decide(now)` says what to do about it.

    waiting (who had least, then first come) ─► hand over a warm fork of that kind
                                             ─► boot, while there is room
                                             ─► evict a warm fork of another kind, then boot
    wanted (what comes next)                 ─► warm a fork, while there is room and nobody waits
    leased, longer than its share            ─► gives way to one that waits and had less (`slice_s`)

There is room while used slots = leased + warm + being warmed + closing are below `capacity`, the memory limits of all
these stay within `memory_bytes`, and the last boot is 1 / `boots_per_s` ago. Who finds no room waits: back-pressure,
never a failure.

Taking turns. Nobody knows how long an attempt will last. First come, first served lets the long ones begin late, and
the batch waits for them on an otherwise empty machine: its time may be 2 - 1/S times the shortest possible (Graham
1966). With slices all attempts advance alike, the long ones from the beginning, and what is left for the end is what
they are longer than the others: least attained service, which for cheap interruptions comes close to what an oracle
reaches. McNaughton (1959): with interruptions, no schedule of lengths l on S machines is shorter than
max(max l, sum l / S), and that one is reached when the lengths are known.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
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


class Tally:
    """Counts of each kind, and of all; each in constant time, however many kinds have come and gone."""

    def __init__(self) -> None:
        self._counts: dict[Kind, int] = {}
        self._total = 0

    def __getitem__(self, kind: Kind) -> int:
        return self._counts.get(kind, 0)

    def __iter__(self) -> Iterator[Kind]:
        """The kinds of which there are any, those that came first first."""
        return iter(self._counts)

    def total(self) -> int:
        return self._total

    def add(self, kind: Kind) -> None:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._total += 1

    def remove(self, kind: Kind) -> None:
        """One of them; there must be one."""
        left = self._counts[kind] - 1
        if left:
            self._counts[kind] = left
        else:
            del self._counts[kind]
        self._total -= 1


class Slots:
    """The state of one lane of the pool. `weigh` gives the memory limit of a kind, in bytes.

    Example: `s = Slots(capacity=1); s.request(1, "a"); s.decide()` gives `[Boot(ticket=1)]`
    """

    def __init__(
        self,
        *,
        capacity: int,
        warm: int = 0,
        memory_bytes: int | None = None,
        boots_per_s: float | None = None,
        slice_s: float | None = None,
        weigh: Callable[[Kind], int] = lambda kind: 0,
    ) -> None:
        self.capacity = capacity
        self.memory_bytes = memory_bytes
        self.warm_limit = warm
        self.wake_at: float | None = None  # decide again then: a boot waits for its turn
        self._weigh = weigh
        self._slice_s = slice_s
        self._boot_pause_s = 1 / boots_per_s if boots_per_s else 0.0
        self._next_boot = 0.0
        self.leased = Tally()
        self.closing = Tally()
        self.warm = Tally()
        self.warming = Tally()
        self.used_memory_bytes = 0
        self.leaving = 0  # leases that are about to give way
        self._waiting: dict[int, tuple[float, Kind]] = {}  # by ticket: seconds it had a sandbox before, and kind
        self._line: list[tuple[float, int]] = []  # (seconds it had, ticket) of these, in the order in which they go
        self._wanted: list[Kind] = []

    # --- events ---------------------------------------------------------------------------------------

    def request(self, ticket: int, kind: Kind, attained_s: float = 0.0) -> None:
        """`attained_s`: for how long it had a sandbox already. Tickets grow."""
        self._waiting[ticket] = attained_s, kind
        insort(self._line, (attained_s, ticket))

    def withdraw(self, ticket: int) -> None:
        """The one who waited has gone."""
        attained_s, _ = self._waiting.pop(ticket)
        del self._line[bisect_left(self._line, (attained_s, ticket))]

    def want(self, kinds: Sequence[Kind]) -> None:
        """Set what comes next, in order, once per fork; replaces what was wanted before."""
        self._wanted = list(kinds)

    def warmed(self, kind: Kind, *, failed: bool = False) -> None:
        self.warming.remove(kind)
        if failed:
            self._left(kind)
            self._satisfied(kind)  # whoever needs it boots it, and hears why it fails
        else:
            self.warm.add(kind)

    def released(self, kind: Kind) -> None:
        """A lease ended; its sandbox is being closed."""
        self.leased.remove(kind)
        self.closing.add(kind)

    def lapsed(self, kind: Kind) -> None:
        """A lease ended that holds no sandbox."""
        self.leased.remove(kind)
        self._left(kind)

    def closed(self, kind: Kind) -> None:
        self.closing.remove(kind)
        self._left(kind)

    # --- the decision ---------------------------------------------------------------------------------

    def decide(self, now: float = 0.0) -> list[Action]:
        """Decide what to do at `now`, in seconds; the state already counts it as done or under way."""
        actions: list[Action] = []
        self.wake_at = None
        while self._waiting:
            ticket = self._line[0][1]
            kind = self._waiting[ticket][1]
            if self.warm[kind] > 0:
                self.warm.remove(kind)
                actions.append(HandOver(ticket=ticket, kind=kind))
            elif self.warming[kind] > 0:
                break  # its fork is on the way
            elif not self._room(kind):
                other = next(iter(self.warm), None)
                if other is not None and not self.closing.total():
                    self._evict(other, actions)
                break
            elif not self._may_boot(now):
                break
            else:
                self._entered(kind)
                actions.append(Boot(ticket=ticket))
            self.leased.add(kind)
            self.withdraw(ticket)
            self._satisfied(kind)
        if not self._waiting:
            self._prepare(actions, now)
        return actions

    def gives_way(self, attained_s: float) -> bool:
        """Whether a lease that has had a sandbox for so long should let another go first.

        For each that waits and had less by a slice, one gives way: those whose place is being freed are counted.
        """
        if self._slice_s is None:
            return False
        ahead = self.closing.total() + self.leaving
        return len(self._line) > ahead and self._line[ahead][0] + self._slice_s <= attained_s

    def fits(self, kind: Kind) -> bool:
        """Whether it could ever be booted."""
        return self.memory_bytes is None or self._weigh(kind) <= self.memory_bytes

    @property
    def used(self) -> int:
        return self.leased.total() + self.closing.total() + self.warm.total() + self.warming.total()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _room(self, kind: Kind) -> bool:
        if self.used >= self.capacity:
            return False
        return self.memory_bytes is None or self.used_memory_bytes + self._weigh(kind) <= self.memory_bytes

    def _may_boot(self, now: float) -> bool:
        """Takes the turn, if it has come."""
        if now < self._next_boot:
            self.wake_at = self._next_boot
            return False
        self._next_boot = now + self._boot_pause_s
        return True

    def _prepare(self, actions: list[Action], now: float) -> None:
        wanted = Counter(self._wanted[: self.warm_limit])
        for kind in [k for k in self.warm if self.warm[k] > wanted[k]]:
            while self.warm[kind] > wanted[kind]:
                self._evict(kind, actions)
        for kind in wanted:
            while self.warm[kind] + self.warming[kind] < wanted[kind] and self._room(kind) and self._may_boot(now):
                self._entered(kind)
                self.warming.add(kind)
                actions.append(Warm(kind=kind))

    def _evict(self, kind: Kind, actions: list[Action]) -> None:
        self.warm.remove(kind)
        self.closing.add(kind)
        actions.append(Evict(kind=kind))

    def _entered(self, kind: Kind) -> None:
        """One more of that kind is held."""
        if self.memory_bytes is not None:
            self.used_memory_bytes += self._weigh(kind)

    def _left(self, kind: Kind) -> None:
        if self.memory_bytes is not None:
            self.used_memory_bytes -= self._weigh(kind)

    def _satisfied(self, kind: Kind) -> None:
        if kind in self._wanted:
            self._wanted.remove(kind)
