from __future__ import annotations

from muster.sandbox.disk import MAX_POLL_S, MIN_POLL_S, WRITE_BYTES_PER_S, DiskBudget

GIB = 1024**3


def test_short_commands_are_not_measured_until_they_could_have_passed_the_limit() -> None:
    budget = DiskBudget(limit_bytes=WRITE_BYTES_PER_S)
    assert not budget.ran(0.4)
    assert not budget.ran(0.4)
    assert budget.ran(0.4)
    assert not budget.measured(1000)
    assert not budget.ran(0.4)


def test_polls_are_closer_the_less_room_there_is() -> None:
    budget = DiskBudget(limit_bytes=GIB)
    assert MIN_POLL_S <= (budget.poll_s or 0) <= MAX_POLL_S
    budget.measured(GIB - 1)
    assert budget.poll_s == MIN_POLL_S


def test_over_the_limit_a_command_that_frees_space_may_run() -> None:
    budget = DiskBudget(limit_bytes=100)
    assert budget.measured(150)
    assert not budget.measured(120)
    assert budget.measured(130)


def test_without_a_limit_nothing_is_ever_due() -> None:
    budget = DiskBudget(limit_bytes=None)
    assert budget.poll_s is None
    assert not budget.ran(1e9)
    assert not budget.measured(10**15)
