"""Evaluation: pass rate on held-out tasks, through the serving engine, pinned to one version.

Law: a number without what made it is not a result. Every evaluation carries its fingerprint (model digest,
engine, version, dtype, sampling, task set), and a token of another version is a broken invariant. Infrastructure
failures are tried again, then excluded and shown; they never count against the model.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from muster import clock
from muster.engine.port import Engine
from muster.journal import Journal, LaunchRow
from muster.orchestrator.config import EvaluateConfig
from muster.orchestrator.dispatch import Dispatcher, derived_seed
from muster.types import Evaluation, Graded, Launch, Outcome, Task, Trajectory, Verdict


class Evaluator:
    """Evaluation on held-out tasks.

    Example: `evaluation = await Evaluator(...)(step=20)`.
    """

    def __init__(
        self,
        config: EvaluateConfig,
        *,
        journal: Journal,
        dispatcher: Dispatcher,
        engine: Engine,
        tasks: Sequence[Task],
        fingerprint: Mapping[str, Any],
        seed: int,
    ) -> None:
        self._config = config
        self._journal = journal
        self._dispatcher = dispatcher
        self._engine = engine
        self._tasks = tuple(tasks)
        self._fingerprint = dict(fingerprint)
        self._seed = seed

    async def __call__(self, step: int) -> Evaluation:
        """Evaluate the version that serves now; nothing may be published meanwhile."""
        started = clock.now()
        version = (await self._engine.statistics()).version
        # launches so far: a number that no earlier evaluation has, not even an interrupted one
        number = self._journal.count(LaunchRow, "purpose = 'evaluate'")
        slots = asyncio.Semaphore(self._config.concurrency)
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(self._sample(task, f"e{number:06d}-{index:04d}", sample, slots))
                for index, task in enumerate(self._tasks)
                for sample in range(self._config.attempts)
            ]
        trajectories = [r.result() for r in running]
        mixed = [t.id for t in trajectories if _versions(t) - {version.number}]
        assert not mixed, f"evaluation of version {version.number} met other versions in {mixed[:3]}"
        return Evaluation(
            step=step,
            version=version,
            tasks=len(self._tasks),
            **_counts([(t.outcome, task) for t, task in zip(trajectories, self._sampled_tasks(), strict=True)]),
            fingerprint={**self._fingerprint, "version": version.number, "model_digest": version.digest},
            started=started,
            ended=clock.now(),
        )

    def _sampled_tasks(self) -> list[Task]:
        return [task for task in self._tasks for _ in range(self._config.attempts)]

    async def _sample(self, task: Task, group_id: str, sample: int, slots: asyncio.Semaphore) -> Trajectory:
        # the same seed at every evaluation: what differs is the policy
        seed = derived_seed(self._seed, f"evaluate/{task.id}/{sample}")
        async with slots:
            attempt = 0
            while True:
                suffix = f"a{attempt}" if attempt else ""
                launch = Launch(
                    id=f"{group_id}.{sample}{suffix}", group_id=group_id, task=task, sibling=sample, attempt=attempt
                )
                trajectory = await self._dispatcher.run(launch, "evaluate", seed)
                if isinstance(trajectory.outcome, Graded) or attempt >= self._config.retries:
                    return trajectory
                attempt += 1


def _versions(trajectory: Trajectory) -> set[int]:
    return {int(v) for s in trajectory.segments for v in s.versions_T[s.sampled_T]}


def _counts(outcomes: Sequence[tuple[Outcome, Task]]) -> dict[str, Any]:
    by_family: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    ungraded: Counter[str] = Counter()
    for outcome, task in outcomes:
        if isinstance(outcome, Graded):
            passed, graded = by_family[task.family]
            by_family[task.family] = (passed + (outcome.verdict is Verdict.SUCCESS), graded + 1)
        else:
            ungraded[str(outcome.cause)] += 1
    passed = sum(p for p, _ in by_family.values())
    graded = sum(g for _, g in by_family.values())
    low, high = wilson(passed, graded)
    return {
        "graded": graded,
        "passed": passed,
        "pass_rate": passed / graded if graded else 0.0,
        "low": low,
        "high": high,
        "by_family": dict(sorted(by_family.items())),
        "ungraded": dict(ungraded),
    }


def wilson(passed: int, graded: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval of a proportion at 95 %. Source: Wilson, JASA 22 (1927), eq. for the score interval."""
    if graded == 0:
        return 0.0, 1.0
    p = passed / graded
    centre = p + z * z / (2 * graded)
    spread = z * sqrt(p * (1 - p) / graded + z * z / (4 * graded * graded))
    scale = 1 + z * z / graded
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
