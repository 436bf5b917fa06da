from __future__ import annotations

from pathlib import Path

import pytest

from muster import clock
from muster.lab.bench.control.control import EMULATED, NAMES, Cost, cost
from muster.lab.bench.control.cpu_parts import CpuParts
from muster.lab.bench.control.world import GROUP_SIZE, STEPS, ControlWorld


def test_a_world_uses_all_of_its_slots_and_counts_its_turns(tmp_path: Path) -> None:
    world = ControlWorld(16, tmp_path, seed=0)
    clock.run_virtual(world.run())
    assert world.most_live == 16
    assert world.turns >= 4 * STEPS * GROUP_SIZE, "three commands and an end, of every member of every batch"


def test_every_sample_has_a_part_and_the_parts_make_the_whole() -> None:
    measured = cost(16, seed=0, measured_turns=1)
    assert set(measured.us) == set(NAMES)
    assert measured.us["rollout"] + measured.us["journal"] > 0
    assert 0 < measured.control_us < sum(measured.us.values())


def test_the_emulation_is_not_the_control_planes() -> None:
    us = dict.fromkeys(NAMES, 100.0)
    all_alike = Cost(live=10, most_live=10, turns=1, us=us, memory_bytes=0)
    assert all_alike.control_us == 100.0 * (len(NAMES) - len(EMULATED))
    assert all_alike.sustained == pytest.approx(1e6 / all_alike.control_us)


def test_time_belongs_to_the_innermost_part() -> None:
    def work(until_s: float) -> None:
        while clock.cpu_s() < until_s:
            pass

    with CpuParts({"clock": "clock"}, rest="other") as cpu:
        work(clock.cpu_s() + 0.2)
    assert cpu.samples.total() >= 10
    assert cpu.share("clock") + cpu.share("other") == pytest.approx(1.0)
    assert cpu.share("nothing") == 0.0
