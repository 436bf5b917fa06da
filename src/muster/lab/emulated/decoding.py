"""The requests of the batch that decode: thousands of steps taken as one stride.

Law: while the batch does not change, every request gains one token a step, so a counter of steps stands for all of
them, and a stride of any length costs the same. When the next one ends, how many cache blocks `k` more steps need and
what the contexts sum to follow from sums that change only when a request joins or leaves.

    blocks of k steps: a request whose length is r modulo the block crosses a boundary every `block` steps; how many
    lengths lie at each r relative to the counter does not change while they grow together
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count

from muster.lab.emulated.request import EmulatedRequest


@dataclass(slots=True)
class Decoding:
    """Decoding requests. `context` is the sum of the lengths."""

    block: int
    rows: int = field(init=False, default=0)
    context: int = field(init=False, default=0)
    _steps: int = field(init=False, default=0)  # the counter
    _at: list[int] = field(init=False, default_factory=list[int])  # lengths at each residue relative to the counter
    _ends: list[tuple[int, int, EmulatedRequest]] = field(
        init=False, default_factory=list[tuple[int, int, EmulatedRequest]]
    )
    _tie: count[int] = field(init=False, default_factory=count)

    def __post_init__(self) -> None:
        self._at = [0] * self.block

    def join(self, request: EmulatedRequest) -> None:
        """Add a request that decodes from the next step on; at least one token of its reply is missing."""
        assert request.reply is not None
        request.joined = request.made - self._steps
        self.rows += 1
        self.context += request.length
        self._at[(request.length - self._steps) % self.block] += 1
        request.entry = next(self._tie)
        heapq.heappush(self._ends, (len(request.reply) - request.joined, request.entry, request))

    def leave(self, request: EmulatedRequest) -> None:
        """Remove a request; its `made` is settled. Its entry among the ends is recognised and skipped."""
        self.settle(request)
        self.rows -= 1
        self.context -= request.length
        self._at[(request.length - self._steps) % self.block] -= 1
        request.entry = -1

    def settle(self, request: EmulatedRequest) -> None:
        """Bring `made` up to date."""
        request.made = request.joined + self._steps

    def steps_to_end(self) -> int:
        """Steps until the first of them has its whole reply."""
        self._skip()
        return self._ends[0][0] - self._steps

    def blocks_for(self, steps: int) -> int:
        """Blocks that all of them together need for `steps` more tokens each."""
        whole, rest = divmod(steps, self.block)
        # a length that fills its last block needs a new one with the next step, the one before it a step later, …
        first = -self._steps % self.block
        low = first - rest + 1
        crossing = sum(self._at[max(0, low) : first + 1]) + (sum(self._at[low:]) if low < 0 else 0)
        return whole * self.rows + crossing

    def steps_within(self, blocks: int, wanted: int) -> int:
        """The most steps, up to `wanted`, that need no more than `blocks`."""
        most = self.rows * (wanted // self.block + 1)
        if most <= blocks or self.blocks_for(wanted) <= blocks:
            return wanted
        low, high = 0, wanted
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.blocks_for(middle) <= blocks else (low, middle)
        return low

    def advance(self, steps: int) -> list[EmulatedRequest]:
        """Take the steps; returns who has its whole reply now, settled, in order of joining. They have not left."""
        self._steps += steps
        self.context += steps * self.rows
        ended: list[EmulatedRequest] = []
        while self.rows > len(ended):
            self._skip()
            if self._ends[0][0] > self._steps:
                break
            _, _, request = heapq.heappop(self._ends)
            self.settle(request)
            ended.append(request)
        return ended

    def _skip(self) -> None:
        """Drop the entries of those who left before their end."""
        while self._ends[0][2].entry != self._ends[0][1]:
            heapq.heappop(self._ends)
