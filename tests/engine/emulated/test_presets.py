"""Presets are complete, plausible, and read back as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.engine.emulated.presets import names, preset, to_toml
from muster.errors import ConfigError


def test_there_are_the_common_pairs() -> None:
    assert set(names()) == {"h100-llama-8b", "h100x8-llama-70b", "a100-qwen-7b", "starter-cpu"}


@pytest.mark.parametrize(
    ("name", "alone", "full", "prefill"),
    [  # tokens/s of one stream; of a full batch with 1 k of context each; of a prompt. Public figures, see presets.toml
        ("h100-llama-8b", 154, 12_500, 33_000),
        ("a100-qwen-7b", 103, 9_500, 11_000),
        ("h100x8-llama-70b", 106, 10_500, 24_000),
        ("starter-cpu", 30, 470, 1_100),
    ],
)
def test_a_presets_rates_are_those_it_was_made_from(name: str, alone: float, full: float, prefill: float) -> None:
    config = preset(name)
    rows, context = config.max_running, min(1024, config.max_model_len // 2)
    assert 1 / config.timing.decode_s(1, 1, context) == pytest.approx(alone, rel=0.1)
    assert rows / config.timing.decode_s(1, rows, rows * context) == pytest.approx(full, rel=0.3)
    assert 4096 / config.timing.prompt_s(4096, config.max_step_tokens) == pytest.approx(prefill, rel=0.15)


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
