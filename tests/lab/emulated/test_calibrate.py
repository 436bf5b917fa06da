"""Fitting the timing to a server gives back the constants that made its times."""

from __future__ import annotations

import numpy as np
import pytest

from muster import clock
from muster.errors import EngineError, UserError
from muster.lab.emulated.calibrate import Calibration, Observation, calibrate, fit, shapes, work_of
from muster.lab.emulated.presets import preset
from muster.lab.emulated.replica import EmulatedReplica


def calibrated(name: str, longest: int) -> Calibration:
    async def main() -> Calibration:
        config = preset(name)
        replica = EmulatedReplica("r", config)
        return await calibrate(replica, longest=longest, step_tokens=config.max_step_tokens, repeats=1)

    return clock.run_virtual(main())


@pytest.mark.parametrize(("name", "longest"), [("h100-llama-8b", 8192), ("a100-qwen-7b", 4096)])
def test_an_emulated_server_is_recovered_exactly(name: str, longest: int) -> None:
    found, true = calibrated(name, longest), preset(name)
    for field, value in true.timing.model_dump().items():
        assert getattr(found.config.timing, field) == pytest.approx(value, rel=1e-6)
    assert found.worst_error < 1e-6
    assert found.overhead_s == pytest.approx(0, abs=1e-6)
    assert found.config.kv_capacity_tokens == true.kv_capacity_tokens
    assert found.config.max_running == true.max_running


def test_noise_and_a_constant_outside_the_engine_do_not_mislead_it() -> None:
    true = preset("h100-llama-8b")
    rng = np.random.default_rng(0)
    observations = []
    for shape in shapes(true.max_running, 8192, true.kv_capacity_tokens):
        silent = Observation(shape=shape, new=(shape.new,) * shape.requests, seconds=0.0)
        seconds = (work_of(silent, true).seconds(true.timing) + 0.004) * float(rng.normal(1, 0.01))
        observations.append(Observation(shape=shape, new=silent.new, seconds=seconds))
    found = fit(observations, true)
    assert found.config.timing.step_s == pytest.approx(true.timing.step_s, rel=0.03)
    assert found.config.timing.prefill_s == pytest.approx(true.timing.prefill_s, rel=0.1)
    assert found.config.timing.row_s == pytest.approx(true.timing.row_s, rel=0.15)
    assert found.overhead_s == pytest.approx(0.004, rel=0.5)
    assert found.typical_error < 0.015


def test_times_that_do_not_depend_on_the_work_are_refused() -> None:
    true = preset("h100-llama-8b")
    observations = [
        Observation(shape=shape, new=(shape.new,) * shape.requests, seconds=1.0)
        for shape in shapes(true.max_running, 8192, true.kv_capacity_tokens)
    ]
    with pytest.raises(EngineError, match="do not depend on the work"):
        fit(observations, true)


def test_a_prompt_longer_than_the_cache_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(UserError, match="the server's cache holds 131072 tokens"):
        calibrated("starter-cpu", 200_000)
