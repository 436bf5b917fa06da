"""Worlds for tests: a seed's scenario with what the test is about put in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from muster import clock
from muster.journal import Journal
from muster.lab.world.chaos import Fault
from muster.lab.world.scenario import Scenario, Scheduling, scenario
from muster.lab.world.simulate import check_times, evaluation
from muster.lab.world.world import World, WorldResult


def quiet(seed: int, **changes: Any) -> Scenario:
    """A world in which nothing goes wrong, with no option of the scheduler in use."""
    return replace(scenario(seed, ()), **{"scheduling": Scheduling(), **changes})


def lived(world: Scenario, rates: Mapping[Fault, float] | None = None) -> tuple[WorldResult, Journal]:
    """Live it. `rates`: the faults at work in it, and no others."""
    chosen = replace(world, rates=dict(rates or {}))
    made = World(chosen, evaluation, check_times)
    result = clock.run_virtual(made.run())
    assert result.violation is None, result.violation
    return result, made.journal
