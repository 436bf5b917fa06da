"""Model configuration: a checkpoint's `config.json`, reduced to what a forward pass needs.

Law: this file reads and writes `config.json` and knows no tensor. A model that we would compute wrongly is
refused here, by name, before any weight is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from muster.errors import ModelError

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes of a Llama-like decoder. Grouped-query attention when `kv_heads < heads`.

    Example: `LlamaConfig.from_folder(Path("SmolLM2-135M-Instruct")).layers == 30`
    """

    vocab_size: int
    width: int  # of the residual stream
    mlp_width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    context: int  # positions the model was trained for
    rope_theta: float = 10_000.0
    rms_eps: float = 1e-5
    tied_embeddings: bool = True
    qkv_bias: bool = False  # Qwen2 has biases on q, k and v alone
    model_type: str = "llama"
    bos_token: int | None = None
    eos_tokens: tuple[int, ...] = ()
    pad_token: int | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> LlamaConfig:
        """Read `folder/config.json`. Raises `ModelError` when it is missing, broken or not a model we can run."""
        path = folder / "config.json"
        try:
            raw = json.loads(path.read_text())
        except FileNotFoundError:
            raise ModelError(f"{folder}: no config.json; expected a Hugging Face model folder") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ModelError(f"{path}: not valid JSON ({error})") from None
        if not isinstance(raw, dict):
            raise ModelError(f"{path}: expected an object, found {type(raw).__name__}")
        return cls.from_json(cast("dict[str, Any]", raw), str(path))

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], where: str = "config.json") -> LlamaConfig:
        """Translate Hugging Face's keys. Raises `ModelError` naming `where` and the key."""
        _refuse_unsupported(raw, where)
        try:
            heads = int(raw["num_attention_heads"])
            width = int(raw["hidden_size"])
            return cls(
                vocab_size=int(raw["vocab_size"]),
                width=width,
                mlp_width=int(raw["intermediate_size"]),
                layers=int(raw["num_hidden_layers"]),
                heads=heads,
                kv_heads=int(raw.get("num_key_value_heads") or heads),
                head_width=int(raw.get("head_dim") or width // heads),
                context=int(raw.get("max_position_embeddings", 2048)),
                rope_theta=_rope_theta(raw),
                rms_eps=float(raw.get("rms_norm_eps", 1e-6)),
                tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
                qkv_bias=raw["model_type"] == "qwen2" or bool(raw.get("attention_bias", False)),
                model_type=str(raw["model_type"]),
                bos_token=_first(raw.get("bos_token_id")),
                eos_tokens=_all(raw.get("eos_token_id")),
                pad_token=_first(raw.get("pad_token_id")),
            )
        except KeyError as error:
            raise ModelError(f"{where}: key {error} is missing") from None
        except (TypeError, ValueError) as error:
            raise ModelError(f"{where}: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """The `config.json` that transformers reads back as the same model."""
        rope = {"rope_theta": self.rope_theta, "rope_type": "default"}
        return {
            "architectures": [_ARCHITECTURES[self.model_type]],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.width,
            "intermediate_size": self.mlp_width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_width,
            "max_position_embeddings": self.context,
            "rope_theta": self.rope_theta,
            "rope_parameters": rope,
            "rms_norm_eps": self.rms_eps,
            "tie_word_embeddings": self.tied_embeddings,
            "attention_bias": self.qkv_bias and self.model_type != "qwen2",
            "hidden_act": "silu",
            "bos_token_id": self.bos_token,
            "eos_token_id": list(self.eos_tokens) if len(self.eos_tokens) > 1 else _first(self.eos_tokens),
            "pad_token_id": self.pad_token,
        }


def _refuse_unsupported(raw: Mapping[str, Any], where: str) -> None:
    model_type = raw.get("model_type")
    if model_type not in _ARCHITECTURES:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise ModelError(f"{where}: model_type {model_type!r} cannot run here; known: {known}")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{where}: hidden_act {raw['hidden_act']!r} cannot run here; known: silu")
    if raw.get("sliding_window") and raw.get("use_sliding_window", model_type == "mistral"):
        raise ModelError(f"{where}: sliding_window attention cannot run here")
    if raw.get("mlp_bias") or (model_type == "llama" and raw.get("attention_bias")):
        raise ModelError(f"{where}: mlp_bias and attention_bias cannot run here (qwen2's q, k, v biases can)")
    kind = _rope(raw).get("rope_type", _rope(raw).get("type", "default"))
    if kind != "default":
        raise ModelError(f"{where}: rope_type {kind!r} cannot run here; known: default")


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    return raw.get("rope_parameters") or raw.get("rope_scaling") or {}


def _rope_theta(raw: Mapping[str, Any]) -> float:
    return float(_rope(raw).get("rope_theta") or raw.get("rope_theta") or 10_000.0)


def _all(value: object) -> tuple[int, ...]:
    """Token ids of a key that holds none, one or a list."""
    if value is None:
        return ()
    if isinstance(value, list | tuple):
        return tuple(int(v) for v in cast("Sequence[Any]", value))
    return (int(str(value)),)


def _first(value: object) -> int | None:
    return next(iter(_all(value)), None)
