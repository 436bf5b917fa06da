"""Demand: how many groups are launched for the batches that are open, and which of them nobody needs any more.

    open batches ─► groups to hold (more than they need, where `over_launch` says so)
    a batch is assembled ─► surplus ─┬► cancel: dropped
                                     ├► carry:  held for the next batch
                                     └► tail:   dropped, and put off ─► enough of them: a batch of only these

Law: pure. Plain numbers and groups; it holds only what was put off. A batch of what was put off is not over-launched:
whatever is left over would be put off again, for ever.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from muster.orchestrator.config import SchedulerConfig
from muster.orchestrator.decisions.groups import Group
from muster.types import ReadyGroup, Task

SURPLUS = "surplus"
"""Why a group was dropped that was launched beyond need."""
PUT_OFF = "put_off"
"""Why a group was dropped whose task is tried again, in a batch of only such tasks."""


class Demand:
    """Number of groups to launch, and which are surplus.

    Example: `Demand(config).groups(batches=2)`
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._put_off: deque[tuple[str, Task]] = deque()  # the group that was dropped, and its task
        self._long = False  # the open batch is one of what was put off

    def restore(self, put_off: Iterable[tuple[str, Task]]) -> None:
        """Continue a run that had put these off, oldest first."""
        self._put_off.extend(put_off)
        self.opened()

    def opened(self) -> None:
        """The next batch opens: of what was put off, if there is enough."""
        self._long = len(self._put_off) >= self._config.groups_per_batch

    def groups(self, batches: int) -> int:
        """To launch for so many batches."""
        over = 1.0 if self._long else self._config.over_launch
        return math.ceil(batches * self._config.groups_per_batch * over)

    def next_put_off(self) -> tuple[str, Task] | None:
        """Next launch, if the open batch is of such: the group that it replaces, and the task."""
        return self._put_off.popleft() if self._long and self._put_off else None

    def surplus(
        self, batches: int, *, ready: Iterable[ReadyGroup], open: Iterable[Group]
    ) -> list[tuple[ReadyGroup | Group, str]]:
        """Groups beyond the need of `batches`, with the reason. The newest go: the oldest of what is left cost most."""
        if self._config.surplus == "carry" or self._config.over_launch == 1 or self._long:
            return []
        held = sorted([*ready, *open], key=lambda g: g.submission)
        surplus: list[tuple[ReadyGroup | Group, str]] = []
        for group in held[self.groups(max(0, batches)) :]:
            reason = SURPLUS
            if self._config.surplus == "tail" and isinstance(group, Group):
                reason = PUT_OFF
                self._put_off.append((group.id, group.task))
            surplus.append((group, reason))
        return surplus
