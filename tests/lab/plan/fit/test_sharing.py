"""Processes that share cores slow each other down, and it is known by how much."""

from __future__ import annotations

import pytest

from muster.journal import DeviceRow
from muster.lab.plan.fit.sharing import Shares, shares


def row(device: str, state: str, start: float, end: float) -> DeviceRow:
    return DeviceRow(device=device, state=state, start=start, end=end)


def test_who_never_overlaps_needed_what_it_took() -> None:
    rows = [row("engine0", "decode", 0, 10), row("trainer", "train", 10, 30)]
    assert shares(rows, 0, 30) == Shares(engine=1.0, trainer=1.0)


def test_two_at_once_do_half_each() -> None:
    rows = [row("engine0", "decode", 0, 10), row("trainer", "train", 0, 10)]
    assert shares(rows, 0, 10) == Shares(engine=0.5, trainer=0.5)


def test_a_part_of_the_time_counts_as_a_part() -> None:
    rows = [row("engine0", "decode", 0, 10), row("trainer", "train", 5, 25)]
    assert shares(rows, 0, 25) == Shares(engine=0.75, trainer=0.875)


def test_three_at_once_do_a_third_each() -> None:
    rows = [row("engine0", "prefill", 0, 6), row("engine1", "decode", 0, 6), row("trainer", "train", 0, 6)]
    found = shares(rows, 0, 6)
    assert (found.engine, found.trainer) == pytest.approx((1 / 3, 1 / 3))


def test_waiting_takes_no_cores() -> None:
    rows = [
        row("engine0", "decode", 0, 10),
        row("engine1", "idle", 0, 10),
        row("trainer", "batch_wait", 0, 5),
        row("trainer", "evaluate", 5, 10),
    ]
    assert shares(rows, 0, 10) == Shares(engine=1.0, trainer=1.0)


def test_only_what_lies_in_the_interval_counts_and_nothing_is_no_overlap() -> None:
    rows = [row("engine0", "decode", 0, 10), row("trainer", "train", 0, 10)]
    assert shares(rows, 20, 30) == Shares()
    assert shares([], 0, 1) == Shares()
