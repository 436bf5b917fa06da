from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import failure, infra, make_task, make_trajectory, success
from muster import clock
from muster.evaluate import Evaluator, wilson
from muster.journal import Journal, LaunchRow
from muster.lab.fakes.engine import FakeReplica
from muster.orchestrator.config import EvaluateConfig
from muster.orchestrator.dispatch import Dispatcher
from muster.rollout.spans import SpanRecorder
from muster.types import Evaluation, Launch, Outcome, Trajectory


class Scripted:
    """Attempts that end as told, in order, for each task; the last outcome is repeated."""

    def __init__(self, outcomes: dict[str, list[Outcome]], *, version: int = 0) -> None:
        self._outcomes = outcomes
        self._version = version

    async def run(self, launch: Launch, spans: SpanRecorder, seed: int | None = None) -> Trajectory:
        await clock.sleep(1.0)
        outcomes = self._outcomes[launch.task.id]
        return make_trajectory(launch, outcomes[min(launch.attempt, len(outcomes) - 1)], version=self._version)


def evaluate(tmp_path: Path, outcomes: dict[str, list[Outcome]], *, version: int = 0) -> tuple[Evaluation, int]:
    async def main() -> Evaluation:
        evaluator = Evaluator(
            EvaluateConfig(concurrency=2),
            journal=journal,
            dispatcher=Dispatcher(journal, Scripted(outcomes, version=version)),
            engine=FakeReplica("engine0", policy=lambda *_: [1]),
            tasks=[make_task(name, family=name[0]) for name in outcomes],
            fingerprint={"dtype": "float32"},
            seed=0,
        )
        return await evaluator(0)

    with Journal.create(tmp_path / "journal.db", meta={}) as journal:
        evaluation = clock.run_virtual(main())
        return evaluation, journal.count(LaunchRow, "purpose = 'evaluate'")


def test_the_rate_is_over_graded_attempts_by_family(tmp_path: Path) -> None:
    evaluation, launches = evaluate(tmp_path, {"a1": [success()], "a2": [failure()], "b1": [success()]})
    assert (evaluation.passed, evaluation.graded, launches) == (2, 3, 3)
    assert evaluation.by_family == {"a": (1, 2), "b": (1, 1)}
    assert evaluation.fingerprint["dtype"] == "float32"
    assert evaluation.fingerprint["model_digest"] == evaluation.version.digest


def test_infrastructure_is_tried_again_then_excluded_and_shown(tmp_path: Path) -> None:
    evaluation, launches = evaluate(tmp_path, {"a1": [infra(), success()], "a2": [infra()]})
    assert (evaluation.passed, evaluation.graded) == (1, 1)
    assert evaluation.ungraded == {"sandbox_lost": 1}
    assert launches == 2 + 3


def test_a_token_of_another_version_is_a_broken_invariant(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="met other versions"):
        evaluate(tmp_path, {"a1": [success()]}, version=3)


@given(st.integers(0, 200), st.integers(1, 200))
def test_the_interval_holds_the_rate_and_narrows_with_more_samples(passed: int, graded: int) -> None:
    passed = min(passed, graded)
    low, high = wilson(passed, graded)
    assert 0 <= low <= passed / graded + 1e-12
    assert passed / graded - 1e-12 <= high <= 1
    low4, high4 = wilson(4 * passed, 4 * graded)
    assert high4 - low4 < high - low


def test_the_interval_agrees_with_a_published_value() -> None:
    # 7 of 20 at 95 %: 0.181 to 0.567 (Newcombe, Statistics in Medicine 17, 1998, method 3)
    assert np.allclose(wilson(7, 20), (0.1812, 0.5671), atol=1e-3)
