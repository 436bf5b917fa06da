"""The line: launches that wait for a slot, in the order in which they get one.

Law: pure. A batch is ready when its last member is, so the order decides its time as soon as slots are short:

    group     refills, then batch by batch, oldest group first, siblings together: what is started is finished
    longest   refills, then batch by batch, the longest expected first: the rule of list scheduling (Graham 1969:
              4/3 - 1/3S of the optimum when the times are known, against 2 - 1/S in any order)
    launch    first siblings of all groups, then second ones, refills at the end: launch order, without groups
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection

from muster.orchestrator.config import Order
from muster.types import Launch


class LaunchQueue:
    """Queue of launches that wait for a slot.

    Example: `line.add(launch, batch=3, submission=24, expected_s=180.0); line.pop()`
    """

    def __init__(self, order: Order) -> None:
        self._order: Order = order
        self._waiting: list[tuple[tuple[float, ...], str, Launch]] = []  # by key, then id: no two are alike

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, launch: Launch, *, batch: int, submission: int, expected_s: float) -> None:
        """`batch`: which one its group is collected for, if all goes in order. A refill is known by its attempt."""
        fresh = launch.attempt == 0
        if self._order == "launch":
            key = (batch, not fresh, launch.sibling, submission)
        elif self._order == "longest":
            key = (fresh, batch, -expected_s, submission, launch.sibling)
        else:
            key = (fresh, batch, submission, launch.sibling)
        insort(self._waiting, (key, launch.id, launch), key=lambda entry: entry[:2])

    def pop(self) -> Launch:
        return self._waiting.pop(0)[2]

    def drop(self, groups: Collection[str]) -> None:
        """Nothing of these groups waits any more."""
        self._waiting = [entry for entry in self._waiting if entry[2].group_id not in groups]

    def first(self, count: int) -> tuple[Launch, ...]:
        """The next `count`, in order."""
        return tuple(launch for _, _, launch in self._waiting[:count])
