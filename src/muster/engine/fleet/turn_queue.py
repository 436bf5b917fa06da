"""Line of the requests that wait for memory, in order. Pure.

Law: the lowest `order` goes first, among equals whoever asked first, and nobody overtakes in the line. Whoever gives up
is skipped when their turn comes.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A turn that waits. `order`: its place in line. `avoid`: replicas that failed it."""

    ticket: int
    session: str
    order: int
    tokens: int
    reply_tokens: int
    since: float
    avoid: frozenset[str] = frozenset()


@dataclass(slots=True)
class TurnQueue:
    """Queue of turns, O(log n) for each event. Example: `line = TurnQueue(); line.join(turn); line.first()`"""

    _heap: list[tuple[int, int]] = field(init=False, default_factory=list[tuple[int, int]])
    _waiting: dict[int, Waiting] = field(init=False, default_factory=dict[int, Waiting])

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, turn: Waiting) -> None:
        self._waiting[turn.ticket] = turn
        heapq.heappush(self._heap, (turn.order, turn.ticket))

    def first(self) -> Waiting | None:
        while self._heap:
            turn = self._waiting.get(self._heap[0][1])
            if turn is not None:
                return turn
            heapq.heappop(self._heap)
        return None

    def leave(self, ticket: int) -> bool:
        """Remove a turn that was placed, or given up. False: it did not wait."""
        left = self._waiting.pop(ticket, None) is not None
        if not self._waiting:
            self._heap.clear()
        return left
