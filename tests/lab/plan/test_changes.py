"""Changes that a plan tries: one thing at a time, and nothing that could have no effect."""

from __future__ import annotations

from lab import small_runs
from muster.lab.plan.changes import changes, unlimited, with_slots

WORLD = small_runs.world()


def test_changes_change_one_thing_each_and_have_names_of_their_own() -> None:
    found = changes(WORLD)
    assert len({c.name for c in found}) == len(found)
    assert all(c.world != WORLD for c in found)
    names = {c.name for c in found}
    assert {"max_lag 1", "aimd", "engines 2", "publish x4", "over-launch 1.25"} <= names


def test_slots_are_tried_only_where_somebody_could_wait_for_one() -> None:
    assert not [c for c in changes(WORLD) if c.name.startswith("slots")]
    starved = changes(with_slots(WORLD, 4))
    assert [c.name for c in starved if c.name.startswith("slots")] == ["slots 8", "slots 16"]


def test_taking_turns_is_tried_where_sandboxes_are_fewer_than_trajectories() -> None:
    (turns,) = (c for c in changes(with_slots(WORLD, 4)) if c.name == "take turns")
    assert (turns.world.sandboxes.slots, turns.world.schedule.slots) == (4, unlimited(WORLD))
    assert "take turns" not in {c.name for c in changes(WORLD)}


def test_affinity_is_tried_where_sessions_wander() -> None:
    fleet = {"replicas": 4, "router": {"policy": "round_robin"}}
    assert "affinity" in {c.name for c in changes(small_runs.world(fleet=fleet))}
    assert "affinity" not in {c.name for c in changes(small_runs.world(fleet={"replicas": 4}))}


def test_window_is_tried_where_work_overlaps() -> None:
    lagging = small_runs.world(schedule={"max_lag": 2, "policy": "fifo"})
    assert "window" in {c.name for c in changes(lagging)}
    assert "window" not in {c.name for c in changes(WORLD)}
