from __future__ import annotations

import gc

import pytest

from muster.orchestrator.garbage import YOUNG_OBJECTS, seldom_collected


def test_garbage_is_looked_for_seldom_and_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), seldom_collected():
        assert gc.get_threshold() == (YOUNG_OBJECTS, *before[1:])
        assert gc.get_freeze_count() > 0
        raise KeyError
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_a_cycle_is_still_found() -> None:
    with seldom_collected():
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() >= 1
