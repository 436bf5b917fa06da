"""Fit to a journal: what is read back is what the run was made with."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab import small_runs
from muster.engine.timing import EngineTiming
from muster.errors import UserError
from muster.journal import Journal
from muster.lab.collection.collection import CollectionWorld, simulate
from muster.lab.collection.programs import Mishaps
from muster.lab.collection.workload import programs
from muster.lab.plan.fit.engine import EngineFit
from muster.lab.plan.fit.programs import draw
from muster.lab.plan.fit.run import fit_run
from muster.lab.plan.fit.world import Fitted


def fitted(world: CollectionWorld, seed: int = 0) -> Fitted:
    with simulate(world, seed).journal as journal:
        return fit_run(journal, small_runs.setup_of(world))


def timing(fit: Fitted) -> EngineTiming:
    assert isinstance(fit.engine, EngineFit)
    return fit.engine.timing


@settings(max_examples=6, deadline=None)
@given(
    step_ms=st.floats(5, 60),
    row=st.floats(0.01, 0.1),
    context=st.floats(0, 2e-5),
    prefill_us=st.floats(50, 1000),
    replicas=st.integers(1, 2),
)
def test_an_engine_is_fitted_so_that_its_steps_take_what_they_took(
    step_ms: float, row: float, context: float, prefill_us: float, replicas: int
) -> None:
    step_s = step_ms / 1000
    truth = EngineTiming(step_s=step_s, row_s=row * step_s, context_s=context * step_s, prefill_s=prefill_us * 1e-6)
    world = small_runs.world(fleet={"engine": small_runs.engine(truth), "replicas": replicas})
    found = timing(fitted(world))
    for rows in (2, 6, 12):
        expected = truth.decode_s(1, rows, rows * 800)
        # the journal does not say which of two replicas served a turn
        assert found.decode_s(1, rows, rows * 800) == pytest.approx(expected, rel=0.15 if replicas == 1 else 0.35)


def test_programs_are_those_that_were_played() -> None:
    world = small_runs.world()
    played = programs(world.workload, 0)
    found = fitted(world).groups
    assert len(found) == 2 * 4, "both batches"
    for group, recorded in zip(played, found, strict=False):
        for program, read in zip(group, recorded, strict=True):
            assert [t.reply_tokens for t in read.turns] == [t.reply_tokens for t in program.turns]
            assert [t.observation_tokens for t in read.turns[:-1]] == [t.observation_tokens for t in program.turns[:-1]]
            assert [t.tool_s for t in read.turns] == pytest.approx([t.tool_s for t in program.turns], abs=1e-4)
            assert read.prompt_tokens == program.prompt_tokens
            assert read.reward == program.reward
            assert read.verify_s == pytest.approx(program.verify_s, abs=1e-3)


def test_the_times_of_training_and_publication_are_read_back() -> None:
    engine = small_runs.engine(stage_s=0.8, commit_s=0.3)
    world = small_runs.world(
        fleet={"engine": engine},
        training={
            "steps": 4,
            "step_s": 7.0,
            "export_s": 1.5,
            "evaluate_s": 3.0,
            "evaluate_every": 2,
            "checkpoint_s": 2.0,
        },
    )
    found = fitted(world)
    assert found.training.step_s == pytest.approx(7.0)
    assert found.training.export_s == pytest.approx(1.5, abs=0.1)
    assert found.training.evaluate_s == pytest.approx(3.0)
    assert found.training.checkpoint_s == pytest.approx(2.0)
    assert found.stage_s == pytest.approx(0.8, abs=0.05)
    assert found.pause_s == pytest.approx(0.3, abs=0.1)


def test_cold_boots_are_told_from_warm_ones() -> None:
    world = small_runs.world(
        sandboxes={"warm": 4, "slots": 8, "times": {"boot_s": {"median": 4.0, "sigma": 0.2}, "command_s": 0.0}},
        schedule={"slots": 8},
    )
    assert fitted(world).times.boot_s.median == pytest.approx(4.0, rel=0.15)


def test_attempts_that_infrastructure_lost_are_a_rate_and_no_programs() -> None:
    world = small_runs.world(mishaps=Mishaps(rate=0.25).model_dump())
    found = fitted(world)
    assert 0.1 < found.mishaps.rate < 0.4
    assert all(program.turns for group in found.groups for program in group)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_run_that_is_simulated_again_from_its_journal_takes_as_long(lag: int) -> None:
    world = small_runs.world(training={"steps": 5}, schedule={"max_lag": lag, "slots": 8}, sandboxes={"slots": 8})
    fit = fitted(world)
    again = fit.world(small_runs.setup_of(world), batches=fit.measured.batches)
    with simulate(again, 1, groups=draw(fit.groups, 0, 4)).journal as journal:
        repeated = fit_run(journal, small_runs.setup_of(world)).measured
    assert repeated.ttb_p50_s == pytest.approx(fit.measured.ttb_p50_s, rel=0.1)


def test_draws_are_the_same_in_every_process_and_differ_from_each_other() -> None:
    groups = programs(small_runs.world().workload, 3)
    assert draw(groups, 1, 4) == draw(groups, 1, 4)
    assert draw(groups, 1, 4) != draw(groups, 2, 4)
    own = draw(groups, 0, 4)
    assert [[p.turns for p in group] for group in own] == [[p.turns for p in group] for group in groups]


@given(size=st.integers(2, 9), number=st.integers(0, 5))
def test_a_draw_has_groups_of_the_size_that_is_asked_for(size: int, number: int) -> None:
    drawn = draw(programs(small_runs.world().workload, 0), number, size)
    assert {len(group) for group in drawn} == {size}
    assert all(len({p.seed for p in group}) == size for group in drawn), "each sibling has its own chance"


def test_a_run_without_a_batch_cannot_be_planned_from() -> None:
    world = small_runs.world()
    journal = Journal.in_memory(meta={})
    with journal, pytest.raises(UserError, match="no batch of this run"):
        fit_run(journal, small_runs.setup_of(world))


def test_a_long_run_is_fitted_to_its_latest_batches() -> None:
    found = fitted(small_runs.world(training={"steps": 10}))
    assert len(found.measured.ttb_s) == 8
    assert found.measured.batches == 11
    assert len(found.groups) == 8 * 4
    assert float(np.max(found.measured.trainer_wait_s)) > 0
