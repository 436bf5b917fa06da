"""Curriculum: the choice of the next task.

Law: tasks are chosen for what a group of attempts at them would teach, and this file alone decides. It knows no
engine, sandbox or clock; all that it learns comes through `record`, and only graded attempts may be recorded.

    next(): family ~ information(success of the family)          sampled: what moves is found again quickly
              └─► its task with the lowest `passed`              stride: no repeat before the others had a turn
                    passed += 1 / information(success of the task)
    record(task, rewards): both estimates decay and take the rewards in

`information(p) = floor + (1 - floor) * 4 p (1 - p)`: the variance of a 0/1 reward, which is what a group baseline
turns into gradient, scaled to 1 at its top. A saturated and a hopeless task both fall to the floor, so they
are retired and retried rarely by the same rule, and come back by themselves when the policy changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from muster.errors import TaskError
from muster.tasks.config import CurriculumConfig
from muster.types import Task

GRADIENT_SPREAD = 1e-6
"""Rewards closer than this are equal, as in `ReadyGroup.has_gradient`."""


@dataclass(slots=True)
class _Estimate:
    """Decayed counts of attempts and successes."""

    attempts: float = 0.0
    successes: float = 0.0

    def add(self, successes: float, attempts: int, decay: float) -> None:
        self.attempts = decay * self.attempts + attempts
        self.successes = decay * self.successes + successes

    def rate(self, prior: float, prior_attempts: float) -> float:
        return (self.successes + prior * prior_attempts) / (self.attempts + prior_attempts)


class Curriculum:
    """Curriculum of one run, which chooses tasks as the module says. Not shared between threads."""

    def __init__(self, tasks: Iterable[Task], config: CurriculumConfig, rng: np.random.Generator) -> None:
        """Raises `TaskError` when there is no task, or two have the same id."""
        self._config = config
        self._rng = rng
        self._tasks: dict[str, Task] = {}
        self._families: dict[str, list[str]] = {}  # insertion order: choices must not depend on hashes
        self._family_estimates: dict[str, _Estimate] = {}
        self._task_estimates: dict[str, _Estimate] = {}
        self._passed: dict[str, float] = {}
        self._quarantined: dict[str, str] = {}
        self._faults: dict[str, int] = {}  # in a row
        self._informative: deque[bool] = deque(maxlen=config.window_groups)
        self.add(tasks)
        if not self._tasks:
            raise TaskError("no task to train on")

    def next(self) -> Task:
        """The task to try now. Raises `TaskError` when every task is quarantined."""
        families = [name for name in self._families if self._open(name)]
        if not families:
            reasons = "; ".join(f"{task}: {why}" for task, why in sorted(self._quarantined.items()))
            raise TaskError(f"all {len(self._tasks)} tasks are quarantined: {reasons}")
        weights = np.array([self._information(self.family_success(name)) for name in families])
        family = families[int(self._rng.choice(len(families), p=weights / weights.sum()))]
        candidates = self._open(family)
        lowest = min(self._passed[task] for task in candidates)
        tied = [task for task in candidates if self._passed[task] == lowest]
        chosen = tied[int(self._rng.integers(len(tied)))]
        self._passed[chosen] += 1.0 / self._information(self.task_success(chosen))
        return self._tasks[chosen]

    def record(self, task_id: str, rewards: Sequence[float]) -> None:
        """The rewards of the graded members of one group; a reward outside 0..1 counts as the nearer end."""
        assert rewards, "a group without a graded member says nothing about its task"
        self._faults.pop(task_id, None)
        successes = float(np.clip(rewards, 0.0, 1.0).sum())
        for estimate in (self._task_estimates[task_id], self._family_estimates[self._tasks[task_id].family]):
            estimate.add(successes, len(rewards), self._config.decay)
        self._informative.append(bool(max(rewards) - min(rewards) > GRADIENT_SPREAD))

    def fault(self, task_id: str, reason: str) -> bool:
        """Count a broken image, or a verifier that fails on the untouched control. True if that quarantines it now."""
        self._faults[task_id] = self._faults.get(task_id, 0) + 1
        if self._faults[task_id] < self._config.quarantine_after or task_id in self._quarantined:
            return False
        self.quarantine(task_id, f"{self._faults[task_id]} faults in a row, the last: {reason}")
        return True

    def quarantine(self, task_id: str, reason: str) -> None:
        """Never choose this task again; its environment or verifier is not to be trusted."""
        assert task_id in self._tasks, task_id
        self._quarantined.setdefault(task_id, reason)

    def add(self, tasks: Iterable[Task]) -> None:
        """Take in fresh tasks; they join the rotation of their family where it stands."""
        for task in tasks:
            if task.id in self._tasks:
                raise TaskError(f"two tasks are named {task.id}: {self._tasks[task.id].root} and {task.root}")
            siblings = self._families.setdefault(task.family, [])
            self._passed[task.id] = min((self._passed[sibling] for sibling in siblings), default=0.0)
            siblings.append(task.id)
            self._tasks[task.id] = task
            self._task_estimates[task.id] = _Estimate()
            self._family_estimates.setdefault(task.family, _Estimate())

    @property
    def informative_share(self) -> float:
        """Share of the last `window_groups` recorded groups whose rewards differed; 1 before the first."""
        return sum(self._informative) / len(self._informative) if self._informative else 1.0

    @property
    def wants_fresh_tasks(self) -> bool:
        """The window is full, and too little of it taught anything."""
        full = len(self._informative) == self._config.window_groups
        return full and self.informative_share < self._config.fresh_below

    @property
    def quarantined(self) -> dict[str, str]:
        """Task id -> reason."""
        return dict(self._quarantined)

    def family_success(self, family: str) -> float:
        """Estimated success rate of a family under the present policy, 0..1."""
        return self._family_estimates[family].rate(0.5, self._config.prior_attempts)

    def task_success(self, task_id: str) -> float:
        """Estimated success rate of a task: its own attempts, with those of its family as the prior."""
        prior = self.family_success(self._tasks[task_id].family)
        return self._task_estimates[task_id].rate(prior, self._config.family_attempts)

    def state(self) -> dict[str, Any]:
        """Everything that later choices depend on, as plain JSON data."""
        return {
            "rng": self._rng.bit_generator.state,
            "families": {name: asdict(estimate) for name, estimate in self._family_estimates.items()},
            "tasks": {name: asdict(estimate) for name, estimate in self._task_estimates.items()},
            "passed": dict(self._passed),
            "quarantined": dict(self._quarantined),
            "faults": dict(self._faults),
            "informative": list(self._informative),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state()`. What it says of tasks that are gone is dropped; new tasks start as `add`ed."""
        self._rng.bit_generator.state = state["rng"]
        for name, saved in state["families"].items():
            if name in self._family_estimates:
                self._family_estimates[name] = _Estimate(**saved)
        for name in self._tasks.keys() & state["tasks"].keys():
            self._task_estimates[name] = _Estimate(**state["tasks"][name])
        for siblings in self._families.values():
            known = [state["passed"][name] for name in siblings if name in state["passed"]]
            for name in siblings:
                self._passed[name] = state["passed"].get(name, min(known, default=0.0))
        self._quarantined = {k: v for k, v in state["quarantined"].items() if k in self._tasks}
        self._faults = {k: v for k, v in state.get("faults", {}).items() if k in self._tasks}
        self._informative.clear()
        self._informative.extend(state["informative"])

    def _open(self, family: str) -> list[str]:
        return [task for task in self._families[family] if task not in self._quarantined]

    def _information(self, success: float) -> float:
        floor = self._config.exploration_floor
        return floor + (1.0 - floor) * 4.0 * success * (1.0 - success)
