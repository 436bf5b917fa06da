"""Expected duration of an attempt at a task, from how long earlier ones took.

Law: pure. What counts is an attempt's own time, without waiting: it would be the same on an empty machine. A task that
was never tried is expected to take as long as the others do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.types import Stage, Trajectory

_OWN = frozenset({Stage.SANDBOX_START, Stage.PREFILL, Stage.DECODE, Stage.TOOL, Stage.VERIFY})
_FORGETS = 0.8  # weight of what was expected against one more attempt: about five count


def own_s(trajectory: Trajectory) -> float:
    """Seconds of the trajectory's own work: model, commands, verification."""
    return sum(s.duration_s for s in trajectory.spans if s.stage in _OWN)


class Expectation:
    """Expected durations of attempts, by task.

    Example: `expected.took("task-7", 340.0); expected.of("task-7")`
    """

    def __init__(self) -> None:
        self._tasks: dict[str, float] = {}
        self._all: float | None = None

    def took(self, task_id: str, seconds: float) -> None:
        """One more attempt took so long by itself."""
        self._tasks[task_id] = _mixed(self._tasks.get(task_id), seconds)
        self._all = _mixed(self._all, seconds)

    def of(self, task_id: str) -> float:
        """Seconds; 0 before anything was tried."""
        return self._tasks.get(task_id, self._all or 0.0)

    def state(self) -> dict[str, Any]:
        return {"tasks": dict(self._tasks), "all": self._all}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._tasks, self._all = dict(state["tasks"]), state["all"]


def _mixed(before: float | None, seconds: float) -> float:
    return seconds if before is None else _FORGETS * before + (1 - _FORGETS) * seconds
