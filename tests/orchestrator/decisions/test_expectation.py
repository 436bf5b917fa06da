from __future__ import annotations

from dataclasses import replace

import pytest

from factories import make_task, make_trajectory, success
from muster.orchestrator.decisions.expectation import Expectation, own_s
from muster.types import Launch, Span, Stage


def test_waiting_is_not_an_attempts_own_time() -> None:
    launch = Launch(id="g0.0", group_id="g0", task=make_task(), sibling=0)
    stages = [Stage.SANDBOX_QUEUE, Stage.DECODE, Stage.ENGINE_QUEUE, Stage.TOOL, Stage.RECOMPUTE, Stage.VERIFY]
    spans = tuple(Span(owner="g0.0", stage=s, start=10.0 * i, end=10.0 * i + 1 + i) for i, s in enumerate(stages))
    assert own_s(replace(make_trajectory(launch, success()), spans=spans)) == 2 + 4 + 6


def test_a_task_is_expected_to_take_what_it_took_and_an_unknown_one_what_others_did() -> None:
    expectation = Expectation()
    assert expectation.of("new") == 0.0
    for _ in range(30):
        expectation.took("short", 10.0)
        expectation.took("long", 100.0)
    assert expectation.of("short") == 10.0
    assert expectation.of("long") == 100.0
    assert 10.0 < expectation.of("new") < 100.0


def test_what_it_learned_survives_a_resume() -> None:
    before, after = Expectation(), Expectation()
    before.took("task", 40.0)
    before.took("task", 80.0)
    after.restore(before.state())
    assert after.of("task") == before.of("task") == pytest.approx(48.0)
