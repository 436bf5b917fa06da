from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from pydantic import ValidationError

from muster.engine.config import EmulatedEngineConfig, RouterConfig
from muster.journal import BatchRow, DropRow, GroupRow, LaunchRow, TrajectoryRow
from muster.lab.collection.bounds import planned_bounds
from muster.lab.collection.collection import (
    Collected,
    CollectionWorld,
    FleetWorld,
    SandboxWorld,
    TrainingWorld,
    number_of,
    simulate,
)
from muster.lab.collection.programs import Mishaps
from muster.lab.collection.timed_sandbox import SandboxTimes
from muster.lab.collection.workload import Lognormal, WorkloadConfig
from muster.orchestrator.config import SchedulerConfig

ENGINE = EmulatedEngineConfig(max_model_len=20_000, kv_capacity_tokens=60_000, max_step_tokens=2048)
WORLD = CollectionWorld(
    workload=WorkloadConfig(
        groups=4,
        group_size=4,
        turns=Lognormal(median=4, sigma=0.8, cap=12),
        tool_s=Lognormal(median=0.85, sigma=1.5, cap=60),
        max_context_tokens=16_000,
    ),
    fleet=FleetWorld(replicas=2, engine=ENGINE),
    sandboxes=SandboxWorld(slots=8, warm=2, verifier_slots=4),
    schedule=SchedulerConfig(groups_per_batch=4, group_size=4, slots=8),
)
BASELINE = WORLD.with_(
    fleet={"router": RouterConfig(policy="round_robin")},
    sandboxes={"warm": 0, "verify": "in_place", "times": SandboxTimes(boot_s=Lognormal(median=23.0), stop_s=10.0)},
    schedule={"order": "launch"},
)


def ttb_s(collected: Collected) -> float:
    (batch,) = collected.journal.rows(BatchRow)
    return batch.ready_at - batch.opened_at


def digest(collected: Collected) -> str:
    return hashlib.sha256(collected.journal.to_bytes()).hexdigest()


def test_the_same_seed_gives_the_same_bytes_in_another_process() -> None:
    script = (
        "import sys; sys.path.insert(0, 'tests/lab/collection')\n"
        "from test_collection import WORLD, digest, simulate\n"
        "print(digest(simulate(WORLD, 3)))"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digest(simulate(WORLD, 3))
    assert digest(simulate(WORLD, 4)) != digest(simulate(WORLD, 3))


def test_every_arm_plays_the_same_programs() -> None:
    played = []
    for world in (WORLD, BASELINE, WORLD.with_(schedule={"order": "longest"})):
        rows = simulate(world, 1).journal.rows(TrajectoryRow)
        played.append({(t.task_id, t.sibling): (t.sampled_tokens, len(t.turns)) for t in rows})
    assert played[0] == played[1] == played[2]
    assert len(played[0]) == 16


def test_a_batch_is_every_group_that_was_asked_for() -> None:
    collected = simulate(WORLD, 1)
    (batch,) = collected.journal.rows(BatchRow)
    assert len(batch.members) == 16
    assert {g.state for g in collected.journal.rows(GroupRow)} == {"trained"}
    planned = [collected.program(t.task_id, t.sibling) for t in collected.journal.rows(TrajectoryRow)]
    assert sum(p.sampled_tokens for p in planned) == sum(collected.sampled.values())


def test_no_arm_beats_its_bound_and_ours_beats_the_baseline() -> None:
    for seed in range(3):
        ours, theirs = simulate(WORLD, seed), simulate(BASELINE, seed)
        bounds = planned_bounds(WORLD, [ours.plan(n) for n in range(4)])
        assert bounds.limit_s is not None
        assert bounds.limit_s <= ttb_s(ours) < ttb_s(theirs)


def test_lost_attempts_are_played_again_until_the_groups_are_whole() -> None:
    world = WORLD.with_(mishaps={"rate": 0.25}, schedule={"max_attempts": 20})
    collected = simulate(world, 2)
    rows = collected.journal.rows(TrajectoryRow)
    lost = [t for t in rows if t.verdict == "infra"]
    assert lost, "a quarter of the attempts fails"
    (batch,) = collected.journal.rows(BatchRow)
    assert len(batch.members) == 16
    assert all(t.verdict != "infra" for t in rows if t.id in batch.members)
    assert len(rows) == 16 + len(lost)
    again = [x for x in collected.journal.rows(LaunchRow) if x.attempt > 0]
    assert {(x.group_id, x.sibling) for x in again} == {(t.group_id, t.sibling) for t in lost}


def test_what_a_batch_leaves_over_is_cancelled_and_its_tokens_are_known() -> None:
    world = WORLD.with_(schedule={"over_launch": 1.5, "surplus": "cancel", "slots": 24}, sandboxes={"slots": 24})
    collected = simulate(world, 1)
    (batch,) = collected.journal.rows(BatchRow)
    dropped = [g for g in collected.journal.rows(GroupRow) if g.state == "dropped"]
    assert len(batch.groups) == 4
    assert len(dropped) == 2
    cancelled = collected.journal.rows(DropRow)
    assert cancelled
    assert any(collected.sampled[d.id] > 0 for d in cancelled)
    assert set(collected.sampled) == {x.id for x in collected.journal.rows(LaunchRow)}


def test_several_batches_overlap_under_a_lag_and_each_is_trained() -> None:
    world = WORLD.with_(schedule={"max_lag": 1}, training={"steps": 3, "step_s": 20.0})
    collected = simulate(world, 0)
    batches = collected.journal.rows(BatchRow)
    assert [b.step for b in batches] == [0, 1, 2]
    trained = [g for g in collected.journal.rows(GroupRow) if g.state == "trained"]
    assert len(trained) == 12
    assert len({number_of(g.task_id) for g in trained}) == 12
    assert batches[1].opened_at == batches[0].ready_at


def test_given_programs_take_the_place_of_the_declared_ones() -> None:
    short = WORLD.workload.model_copy(update={"turns": Lognormal(median=1)})
    groups = [simulate(WORLD.model_copy(update={"workload": short}), 0).plan(n) for n in range(2)]
    collected = simulate(WORLD, 0, groups=groups)
    rows = collected.journal.rows(TrajectoryRow)
    assert {len(t.turns) for t in rows} == {1}
    first, third = ([t for t in rows if t.task_id == f"task0000{n}"] for n in (0, 2))
    assert sorted(t.sampled_tokens for t in first) == sorted(t.sampled_tokens for t in third), "used again in turn"


def test_what_earlier_epochs_took_decides_the_order_of_longest() -> None:
    world = WORLD.with_(schedule={"order": "longest", "slots": 4}).model_copy(update={"epochs": 1})
    collected = simulate(world, 5)
    order = list(dict.fromkeys(x.task_id for x in sorted(collected.journal.rows(LaunchRow), key=lambda x: x.at)))
    unknown = simulate(world.model_copy(update={"epochs": 0}), 5)
    plain = list(dict.fromkeys(x.task_id for x in sorted(unknown.journal.rows(LaunchRow), key=lambda x: x.at)))
    assert plain == sorted(plain)
    assert order != plain


def test_a_session_alone_finds_its_prefix_whatever_the_fleet() -> None:
    alone = WORLD.with_(schedule={"slots": 1, "order": "group"}, sandboxes={"slots": 1})
    rates = [simulate(alone.with_(fleet={"replicas": n}), 1).hit_rate for n in (1, 2)]
    assert rates[0] == pytest.approx(rates[1], abs=0.05), "but for the prompts, which each replica computes"
    assert min(rates) > 0.75


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": {"group_size": 8}}, "must be equal"),
        ({"workload": {"max_context_tokens": 50_000}}, "max_model_len"),
        ({"fleet": {"overrides": {"kv_capacity": 1}}}, "kv_capacity"),
        ({"sandboxes": {"slotz": 3}}, "slotz"),
    ],
)
def test_a_world_that_cannot_be_says_why(changes: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        WORLD.with_(**changes)


def test_the_boot_of_a_launch_takes_the_same_time_in_every_arm() -> None:
    times = SandboxTimes(boot_s=Lognormal(median=23.0, sigma=0.5))
    one = BASELINE.with_(sandboxes={"times": times})
    booted = [simulate(w, 1).booting_s for w in (one, one.with_(fleet={"replicas": 1}, schedule={"order": "group"}))]
    assert booted[0] == pytest.approx(booted[1])
    assert np.isfinite(booted[0])


def test_no_mishap_befalls_a_world_without_mishaps() -> None:
    assert Mishaps().rate == 0
    assert not [t for t in simulate(WORLD, 0).journal.rows(TrajectoryRow) if t.verdict == "infra"]


def test_a_training_world_of_one_step_is_a_single_batch_at_fixed_weights() -> None:
    assert TrainingWorld().steps == 1
    versions = {t.oldest_version for t in simulate(WORLD, 0).journal.rows(TrajectoryRow)}
    assert versions == {0}
