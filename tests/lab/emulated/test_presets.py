"""Presets are complete, plausible, and read back as they were written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from muster import clock
from muster.errors import ConfigError
from muster.lab.emulated.presets import names, preset, to_toml
from muster.lab.emulated.replica import EmulatedReplica
from muster.types import Sampling, Session


def test_there_are_the_common_pairs() -> None:
    assert set(names()) == {
        "h100-llama-8b",
        "h100x8-llama-70b",
        "h100-qwen-7b",
        "h100x2-qwen-32b",
        "h100x2-qwen-32b-fp8kv",
        "a100-qwen-7b",
        "starter-cpu",
    }


@pytest.mark.parametrize(
    ("name", "alone", "full", "prefill"),
    [  # tokens/s of one stream; of a full batch with 1 k of context each; of a prompt. Public figures, see presets.toml
        ("h100-llama-8b", 154, 12_500, 33_000),
        ("a100-qwen-7b", 103, 9_500, 11_000),
        ("h100-qwen-7b", 164, 15_000, 35_000),
        ("h100x2-qwen-32b", 57, 5_500, 13_000),
        ("h100x8-llama-70b", 106, 10_500, 24_000),
        ("starter-cpu", 30, 470, 1_100),
    ],
)
def test_a_presets_rates_are_those_it_was_made_from(name: str, alone: float, full: float, prefill: float) -> None:
    config = preset(name)
    context = min(1024, config.max_model_len // 2)
    assert config.stream_decode_rate(context) == pytest.approx(alone, rel=0.1)
    assert config.decode_rate(context) == pytest.approx(full, rel=0.3)
    assert config.prefill_rate() == pytest.approx(prefill, rel=0.15)


def test_the_rates_are_what_a_replica_reaches_and_never_exceeds() -> None:
    config = preset("a100-qwen-7b").model_copy(update={"max_running": 16})
    reached: dict[str, float] = {}

    async def measure(name: str, requests: int, prompt: int, new: int, tokens: int) -> None:
        replica = EmulatedReplica("r", config)
        rng = np.random.default_rng(0)
        prompts = [rng.integers(3, 1000, prompt).astype(np.int32) for _ in range(requests)]
        started = clock.now()
        calls = [replica.generate(p, Sampling(max_tokens=new), Session(id=str(i))) for i, p in enumerate(prompts)]
        await asyncio.gather(*calls)
        reached[name] = tokens / (clock.now() - started)

    clock.run_virtual(measure("stream", 1, 1, 500, 500))
    clock.run_virtual(measure("batch", 16, 1, 500, 16 * 500))
    clock.run_virtual(measure("prefill", 32, 1024, 1, 32 * 1024))
    rates = {"stream": config.stream_decode_rate(), "batch": config.decode_rate(), "prefill": config.prefill_rate()}
    for name, rate in rates.items():
        assert 0.9 * rate < reached[name] <= rate, name


def test_agents_find_room_for_their_contexts_on_every_gpu_preset() -> None:
    short = {name for name in names() if preset(name).max_model_len < 65_536}
    assert short == {"a100-qwen-7b", "starter-cpu"}


def test_keys_and_values_of_half_the_size_are_twice_as_many_and_read_twice_as_fast() -> None:
    plain, small = preset("h100x2-qwen-32b"), preset("h100x2-qwen-32b-fp8kv")
    assert small.kv_capacity_tokens == pytest.approx(2 * plain.kv_capacity_tokens, rel=0.01)
    assert small.timing.context_s == plain.timing.context_s / 2


def test_a_preset_is_read_back_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(to_toml(preset("starter-cpu")))
    assert preset(str(file)) == preset("starter-cpu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step = ", "not TOML"),
        ("speed = 3", "speed: Extra inputs"),
        ("[timing]\nstep_s = 0\nprefill_s = 1", "timing.step_s"),
        ("max_running = 500\nmax_step_tokens = 100", "max_step_tokens = 100 cannot hold a token for each"),
        ("kv_capacity_tokens = 1000", "does not hold one request of max_model_len = 4096; it needs 4128"),
    ],
)
def test_a_broken_file_is_named_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.toml.*" + message):
        preset(str(file))


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'h100-llama-8b'"):
        preset("h100-lama-8b")
    with pytest.raises(ConfigError, match="No such file"):
        preset("nowhere.toml")
