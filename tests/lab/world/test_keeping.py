"""Continued attempts in simulated worlds: the laws hold, and the long ones come to their end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from lab.worlds import lived, quiet
from muster.journal import EventRow, GroupRow, Journal, KeepRow, TrajectoryRow
from muster.lab.collection.workload import Lognormal
from muster.lab.world.chaos import Fault
from muster.lab.world.scenario import Scenario
from muster.rollout.keeping import kept_tokens, own_tokens


def long_attempts(seed: int, **changes: object) -> Scenario:
    """Attempts of many turns, which have more occasions to be lost."""
    settings = {"max_attempts": 4, **changes}
    world = quiet(seed, steps=2, evaluate_every=0, time_budget_s=10_000.0, **settings)
    turns = Lognormal(median=8.0, sigma=0.6, cap=24.0)
    return replace(
        world, workload=replace(world.workload, turns=turns, tool_s=Lognormal(median=0.85, sigma=1.0, cap=60.0))
    )


def continuations(journal: Journal) -> list[TrajectoryRow]:
    return [row for row in journal.rows(TrajectoryRow) if kept_tokens(row.evidence)]


@pytest.mark.parametrize("seed", range(4))
def test_kills_and_lost_sandboxes_are_continued_and_every_law_holds(seed: int) -> None:
    world = long_attempts(seed, keep_every_s=2.0, kills=(40, 40, 40))
    result, journal = lived(world, {Fault.SANDBOX_DEATH: 0.03, Fault.SANDBOX_HANG: 0.01, Fault.ENGINE_RESTART: 0.3})
    assert result.stops["killed"] == 3
    assert continuations(journal)
    assert journal.count(KeepRow) == 0
    siblings = Counter((row.group_id, row.sibling) for row in journal.rows(TrajectoryRow, "reward IS NOT NULL"))
    assert max(siblings.values()) == 1


def test_what_went_on_is_not_sampled_again() -> None:
    def sampled(keep_every_s: float) -> int:
        _, journal = lived(long_attempts(3, keep_every_s=keep_every_s), {Fault.SANDBOX_DEATH: 0.04})
        return sum(own_tokens(row.trajectory()) for row in journal.rows(TrajectoryRow))

    assert sampled(2.0) < 0.9 * sampled(0.0)


def test_where_attempts_are_lost_all_the_time_few_groups_are_given_up_whose_attempts_get_further() -> None:
    def short(keep_every_s: float) -> int:
        world = long_attempts(5, keep_every_s=keep_every_s, max_attempts=2, min_group=None)
        _, journal = lived(world, {Fault.SANDBOX_DEATH: 0.06})
        return journal.count(GroupRow, "drop_reason = 'short'")

    assert short(1.0) < 0.2 * short(0.0)


def test_a_machine_that_is_lost_takes_what_was_kept_and_the_run_says_so() -> None:
    for seed in range(4, 12):  # a kill takes the machine with it now and then
        _, journal = lived(long_attempts(seed, keep_every_s=2.0, kills=(50, 60)))
        said = [event.message for event in journal.rows(EventRow, "kind = 'relaunched'")]
        if said:
            assert all(message.endswith("its snapshot is gone") for message in said)
            return
    pytest.fail("no machine was lost")
