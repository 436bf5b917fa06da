"""`config.json` in, sizes out; what we cannot run is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster.errors import ModelError
from muster.model.config import LlamaConfig

RAW: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


def test_reads_what_a_forward_pass_needs() -> None:
    config = LlamaConfig.from_json(RAW)
    assert (config.width, config.heads, config.kv_heads, config.head_width) == (64, 4, 2, 16)
    assert config.eos_tokens == (2,)
    assert config.tied_embeddings and not config.qkv_bias


def test_rope_theta_is_found_in_its_old_and_its_new_place() -> None:
    assert LlamaConfig.from_json({**RAW, "rope_theta": 5e5}).rope_theta == 5e5
    new = {**RAW, "rope_parameters": {"rope_type": "default", "rope_theta": 7e5}}
    assert LlamaConfig.from_json(new).rope_theta == 7e5


def test_qwen2_has_biases_and_several_stop_tokens() -> None:
    config = LlamaConfig.from_json({**RAW, "model_type": "qwen2", "eos_token_id": [2, 5]})
    assert config.qkv_bias
    assert config.eos_tokens == (2, 5)


def test_its_own_json_reads_back_as_itself() -> None:
    for raw in (RAW, {**RAW, "model_type": "qwen2", "tie_word_embeddings": False}):
        config = LlamaConfig.from_json(raw)
        assert LlamaConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "mixtral"}, "mixtral"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "yarn"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_size": None}, "config.json"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window"),
    ],
)
def test_a_model_we_would_compute_wrongly_is_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(ModelError, match=word):
        LlamaConfig.from_json({**RAW, **change})


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ModelError, match="intermediate_size"):
        LlamaConfig.from_json({k: v for k, v in RAW.items() if k != "intermediate_size"})


def test_a_folder_without_config_or_with_a_broken_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        LlamaConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        LlamaConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(ModelError, match="expected an object"):
        LlamaConfig.from_folder(tmp_path)
