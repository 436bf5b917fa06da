from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster import clock
from muster.errors import EngineError, TrainerError
from muster.journal import (
    BatchRow,
    CheckpointRow,
    DropRow,
    EventRow,
    GroupRow,
    Journal,
    LaunchRow,
    MetricRow,
    StepRow,
    TrajectoryRow,
)
from muster.lab.fakes.sandbox import FakeFaults
from muster.lab.fakes.trainer import FakeTrainerConfig
from muster.lab.fakes.verifier import FakeVerifierFaults
from muster.orchestrator.loops import AdmissionStopped
from muster.trainer.config import DivergenceLimit
from orchestrator.world import World

FAULTY: dict[str, Any] = {
    "sandbox_faults": FakeFaults(start_failure=0.03, loss=0.05, hang=0.02),
    "verifier_faults": FakeVerifierFaults(crash=0.05, hang=0.01, interruption=0.03),
    "schedule": {"infra_alarm_rate": 1.0, "max_attempts": 6},
}


def check_laws(world: World, *, steps: int) -> None:
    """Check the laws of every run that ended, whatever happened to it."""
    with world.journal() as journal:
        batches = journal.rows(BatchRow)
        trajectories = {t.id: t for t in journal.rows(TrajectoryRow)}
        assert [b.step for b in batches] == list(range(steps))
        assert journal.count(StepRow) == steps
        trained = Counter(m for b in batches for m in b.members)
        assert max(trained.values()) == 1, "trained twice"
        for batch in batches:
            members = [trajectories[m] for m in batch.members]
            assert all(m.verdict in ("success", "failure") for m in members), "only graded members train"
            assert len(batch.groups) == 2
            for group in batch.groups:
                rewards = {m.reward for m in members if m.group_id == group}
                assert len(rewards) > 1, "a group in a batch has gradient"
            oldest = min(m.oldest_version for m in members if m.oldest_version is not None)
            assert 0 <= batch.step - oldest <= world.max_lag, "the staleness bound"
            assert batch.opened_at <= batch.ready_at
        launches = {x.id for x in journal.rows(LaunchRow)}
        dropped = {d.id for d in journal.rows(DropRow)}
        assert launches == set(trajectories) | dropped, "every launch ended"
        assert not set(trajectories) & dropped
        assert {g.state for g in journal.rows(GroupRow)} <= {"trained", "dropped", "open", "ready"}
        _check_tokens(journal)
    assert world.backend is not None
    assert world.backend.live <= 2, "no sandbox beside the warm ones"


def _check_tokens(journal: Journal) -> None:
    """Versions on tokens lie between what served at the start and at the end of the trajectory."""
    served = {p.version.number for p in journal.publications()}
    for row in journal.rows(TrajectoryRow):
        for segment in row.trajectory().segments:
            assert set(np.unique(segment.versions_T[segment.sampled_T])) <= served


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_a_run_trains_every_step_on_complete_groups(tmp_path: Path, max_lag: int) -> None:
    world = World(directory=tmp_path, max_lag=max_lag)
    assert clock.run_virtual(world.run()) is True
    check_laws(world, steps=4)


def test_every_publication_is_in_the_metrics_the_last_one_too(tmp_path: Path) -> None:
    world = World(directory=tmp_path, steps=3)
    assert clock.run_virtual(world.run())
    with world.journal() as journal:
        checks = {row.step: row.value for row in journal.rows(MetricRow, "name = 'digest_checks'")}
        assert checks == {0: 1, 1: 1, 2: 1, 3: 1}, (
            "of the version that each step trains from, and of the one that serves"
        )
        assert len(journal.publications()) == 4


def test_lag_one_overlaps_generation_with_training(tmp_path: Path) -> None:
    def duration(max_lag: int) -> float:
        world = World(directory=tmp_path / str(max_lag), max_lag=max_lag, steps=6, loop={"evaluate_every": 0})
        clock.run_virtual(world.run())
        with world.journal() as journal:
            return journal.rows(StepRow)[-1].ended - journal.rows(StepRow)[0].started

    assert duration(1) < 0.9 * duration(0)


@pytest.mark.parametrize("seed", range(12))
def test_faults_delay_a_run_but_break_no_law(tmp_path: Path, seed: int) -> None:
    world = World(directory=tmp_path, seed=seed, max_lag=seed % 3, **FAULTY)
    assert clock.run_virtual(world.run()) is True
    check_laws(world, steps=4)


@pytest.mark.parametrize("seed", range(12))
def test_a_run_killed_at_any_instant_resumes_and_loses_nothing(tmp_path: Path, seed: int) -> None:
    world = World(directory=tmp_path, seed=seed, max_lag=seed % 2, **FAULTY)
    kills = np.random.default_rng(seed).uniform(1.0, 25.0, size=3)
    for kill_after_s in kills:
        if clock.run_virtual(world.run(kill_after_s=float(kill_after_s))) is not None:
            break
    with world.journal() as journal:
        graded = {t.id for t in journal.rows(TrajectoryRow, "reward IS NOT NULL")}
    assert clock.run_virtual(world.run()) is True
    check_laws(world, steps=4)
    with world.journal() as journal:
        assert graded <= {t.id for t in journal.rows(TrajectoryRow, "reward IS NOT NULL")}


def test_an_update_lost_with_the_process_is_made_again_from_the_same_batch(tmp_path: Path) -> None:
    whole = World(directory=tmp_path / "whole", loop={"checkpoint_every": 100})
    clock.run_virtual(whole.run())
    killed = World(directory=tmp_path / "killed", loop={"checkpoint_every": 100})
    with whole.journal() as journal:
        second = journal.rows(StepRow)[1]
    assert clock.run_virtual(killed.run(kill_after_s=second.ended + 2.0)) is None
    assert clock.run_virtual(killed.run()) is True
    check_laws(killed, steps=4)
    with whole.journal() as a, killed.journal() as b:
        before = {p.version.number: p.version.digest for p in a.publications()}
        after = {p.version.number: p.version.digest for p in b.publications()}
    assert before[2] == after[2]


def test_a_stop_writes_a_checkpoint_and_says_what_it_dropped(tmp_path: Path) -> None:
    world = World(directory=tmp_path, steps=8, loop={"checkpoint_every": 100})
    assert clock.run_virtual(world.run(stop_after_s=30.0)) is False
    with world.journal() as journal:
        steps, checkpoints = journal.count(StepRow), journal.rows(CheckpointRow)
        assert 0 < steps < 8
        assert not checkpoints or checkpoints[-1].step == steps
        assert {d.reason for d in journal.rows(DropRow)} <= {"stopped"}
    assert clock.run_virtual(world.run()) is True
    check_laws(world, steps=8)


def test_the_same_seed_gives_the_same_journal(tmp_path: Path) -> None:
    def trajectories(name: str) -> list[TrajectoryRow]:
        world = World(directory=tmp_path / name, seed=5, max_lag=1, **FAULTY)
        clock.run_virtual(world.run())
        with world.journal() as journal:
            return journal.rows(TrajectoryRow)

    assert trajectories("a") == trajectories("b")


def test_a_trainer_that_fails_stops_the_run_with_its_cause(tmp_path: Path) -> None:
    world = World(directory=tmp_path, trainer=FakeTrainerConfig(fails_at=1))
    with pytest.RaisesGroup(pytest.RaisesExc(TrainerError), flatten_subgroups=True):
        clock.run_virtual(world.run())
    with world.journal() as journal:
        assert journal.count(StepRow) == 1


def test_an_engine_that_dies_stops_the_run_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        world = World(directory=tmp_path)
        running = asyncio.ensure_future(world.run())
        await clock.sleep(8.0)
        assert world.engine is not None
        world.engine.crash()
        await running

    with pytest.raises(ExceptionGroup) as raised:
        clock.run_virtual(main())
    assert raised.group_contains(EngineError, match="dead: killed")
    assert not raised.group_contains(AdmissionStopped)


def test_infrastructure_that_always_fails_ends_in_an_alarm_not_in_learning(tmp_path: Path) -> None:
    world = World(
        directory=tmp_path,
        sandbox_faults=FakeFaults(start_failure=1.0),
        schedule={"infra_alarm_window": 8, "max_attempts": 5},
    )
    with pytest.RaisesGroup(
        pytest.RaisesExc(AdmissionStopped, match="failed by infrastructure"), flatten_subgroups=True
    ):
        clock.run_virtual(world.run())
    with world.journal() as journal:
        assert journal.count(StepRow) == 0
        assert {t.reward for t in journal.rows(TrajectoryRow)} == {None}


def test_the_live_view_sees_stages_and_progress(tmp_path: Path) -> None:
    world = World(directory=tmp_path)
    clock.run_virtual(world.run())
    stages = {stage for status in world.statuses for stage in status.stages}
    assert "decode" in stages or "engine_queue" in stages
    assert world.statuses[-1].step == 4
    assert world.statuses[-1].version == 4


def test_a_task_whose_verifier_always_fails_is_quarantined_and_the_others_train(tmp_path: Path) -> None:
    broken = frozenset({"task1", "task5"})
    world = World(directory=tmp_path, broken_tasks=broken, steps=8, schedule={"infra_alarm_rate": 1.0})
    clock.run_virtual(world.run())
    check_laws(world, steps=8)
    with world.journal() as journal:
        events = [e.message for e in journal.rows(EventRow) if e.kind == "quarantine"]
        faults = Counter(t.task_id for t in journal.rows(TrajectoryRow) if t.cause == "verifier_fault")
        trained = {g.task_id for g in journal.rows(GroupRow) if g.state == "trained"}
    assert {message.split(":")[0] for message in events} == set(faults) <= broken
    assert events
    assert not trained & broken


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "schedule",
    [
        {"over_launch": 2.0},
        {"over_launch": 2.0, "surplus": "tail"},
        {"over_launch": 1.5, "surplus": "carry", "max_lag": 1},
        {"order": "longest", "max_lag": 1},
        {"order": "launch"},
        {"concurrency": {"policy": "aimd", "start": 4, "least": 2, "interval_s": 1.0}},
    ],
    ids=["over", "tail", "carry", "longest", "launch", "aimd"],
)
def test_every_way_to_schedule_keeps_the_laws(tmp_path: Path, schedule: dict[str, Any], seed: int) -> None:
    max_lag = schedule.get("max_lag", 0)
    faulty = {**FAULTY, "schedule": {**FAULTY["schedule"], **schedule}}
    world = World(directory=tmp_path, seed=seed, max_lag=max_lag, **faulty)
    assert clock.run_virtual(world.run(kill_after_s=15.0)) is None
    assert clock.run_virtual(world.run()) is True
    check_laws(world, steps=4)


def test_surplus_is_dropped_with_its_reason_when_the_batch_is_ready(tmp_path: Path) -> None:
    world = World(directory=tmp_path, schedule={"over_launch": 2.0})
    assert clock.run_virtual(world.run()) is True
    check_laws(world, steps=4)
    with world.journal() as journal:
        batches = journal.rows(BatchRow)
        surplus = [g for g in journal.rows(GroupRow) if g.drop_reason == "surplus"]
        cancelled = [d for d in journal.rows(DropRow) if d.reason == "surplus"]
    assert {g.closed_at for g in surplus} == {b.ready_at for b in batches}, "at each batch, and at no other instant"
    assert len(surplus) <= 2 * 4, "twice as many were launched as were needed"
    assert cancelled
    assert {d.at for d in cancelled} <= {b.ready_at for b in batches}


def test_what_was_put_off_is_tried_again_also_after_a_kill(tmp_path: Path) -> None:
    world = World(directory=tmp_path, steps=8, schedule={"over_launch": 1.5, "surplus": "tail"})
    assert clock.run_virtual(world.run(kill_after_s=40.0)) is None
    assert clock.run_virtual(world.run()) is True
    check_laws(world, steps=8)
    with world.journal() as journal:
        groups = {g.id: g for g in journal.rows(GroupRow)}
    put_off = [g for g in groups.values() if g.drop_reason == "put_off"]
    again = {g.replaces: g for g in groups.values() if g.replaces in groups}
    assert len(put_off) >= 4
    waiting = [g for g in put_off if g.id not in again]
    assert len(waiting) < 3, "a batch of them is made as soon as there are enough"
    assert all(again[g.id].task_id == g.task_id for g in put_off if g.id in again)


def test_a_batch_measured_as_too_far_is_filled_again_before_the_step(tmp_path: Path) -> None:
    """One step moves the policy by k3 = drift / 2: tokens that are two steps old are over the limit."""
    trainer = FakeTrainerConfig(drift_m2=0.1, step_s=20.0)
    limit = DivergenceLimit(max_k3=0.1, action="refill")
    schedule = {"policy": "greedy"}
    world = World(directory=tmp_path, steps=6, max_lag=3, schedule=schedule, trainer=trainer, divergence_limit=limit)
    assert clock.run_virtual(world.run()) is True
    check_laws(world, steps=6)
    with world.journal() as journal:
        refused = [g for g in journal.rows(GroupRow) if g.drop_reason == "diverged"]
        trajectories = {t.id: t for t in journal.rows(TrajectoryRow)}
        for batch in journal.rows(BatchRow):
            oldest = min(v for m in batch.members if (v := trajectories[m].oldest_version) is not None)
            assert batch.step - oldest <= 1
    assert refused


def test_a_measured_distance_keeps_far_tokens_out_of_a_batch_that_the_lag_would_allow(tmp_path: Path) -> None:
    world = World(
        directory=tmp_path,
        steps=6,
        max_lag=3,
        schedule={"policy": "greedy", "max_divergence": 0.4},
        trainer=FakeTrainerConfig(drift_m2=0.09, step_s=20.0),  # 0.3 a step
    )
    assert clock.run_virtual(world.run()) is True
    check_laws(world, steps=6)
    with world.journal() as journal:
        trajectories = {t.id: t for t in journal.rows(TrajectoryRow)}
        lags = [
            batch.step - version
            for batch in journal.rows(BatchRow)
            for m in batch.members
            if (version := trajectories[m].oldest_version) is not None
        ]
    assert max(lags) == 1
