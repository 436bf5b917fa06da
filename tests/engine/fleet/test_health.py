from __future__ import annotations

import pytest

from muster.engine.fleet.health import DEAD_AFTER, Health, ReplicaState


def healthy() -> Health:
    health = Health()
    health.answered(right=True)
    return health


def test_a_replica_serves_once_it_answered_with_the_right_version() -> None:
    health = Health()
    assert not health.serves
    health.answered(right=False)
    assert (health.state, health.serves, health.gone) == (ReplicaState.STALE, False, True)
    health.answered(right=True)
    assert health.serves


def test_one_failure_makes_it_suspect_and_an_answer_clears_it() -> None:
    health = healthy()
    health.failed()
    assert (health.state, health.serves, health.gone) == (ReplicaState.SUSPECT, False, False)
    health.answered(right=True)
    assert (health.state, health.failures) == (ReplicaState.HEALTHY, 0)


def test_failures_in_a_row_give_it_up_and_it_may_come_back() -> None:
    health = healthy()
    for _ in range(DEAD_AFTER):
        health.failed()
    assert (health.state, health.gone, health.watched) == (ReplicaState.DEAD, True, True)
    health.restarts()
    assert health.state is ReplicaState.RESTARTING
    health.answered(right=False)
    assert health.state is ReplicaState.STALE


def test_a_starting_replica_that_does_not_answer_is_not_waited_for_by_others() -> None:
    health = Health()
    assert health.unheard
    health.failed()
    assert (health.state, health.unheard) == (ReplicaState.STARTING, False)


@pytest.mark.parametrize(
    "event",
    [lambda h: h.answered(right=True), lambda h: h.failed(), lambda h: h.restarts()],
    ids=["answer", "fail", "restart"],
)
def test_a_retired_replica_stays_retired(event) -> None:  # type: ignore[no-untyped-def]
    health = healthy()
    health.retire()
    event(health)
    assert (health.state, health.watched) == (ReplicaState.RETIRED, False)
