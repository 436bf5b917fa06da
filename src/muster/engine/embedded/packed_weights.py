"""Weights as the engine holds them: fused, and laid out for the matrix units.

Law: what is digested is what will be multiplied. `digest` unpacks the very tensors that `forward` uses, so a
transfer, a fusion or a tied head gone wrong cannot keep the right label.

    checkpoint names ─fuse qkv, gate+up─► rows stacked ─pack─► opaque blocks (bf16) ─unpack─► names ─► digest
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from muster.errors import ModelError
from muster.model import weights
from muster.model.config import LlamaConfig

_LIKELY_ROWS = 64
"""The batch for which the packed layout is chosen; it works for all, it is best near this one."""


def _can_pack(dtype: torch.dtype) -> bool:
    return dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class Linear:
    """y = x W^T + b, with W packed once for oneDNN in bf16 (1.4x at decode sizes), plain otherwise."""

    def __init__(self, weight_ON: Tensor, bias_O: Tensor | None = None) -> None:
        self.bias_O = bias_O
        self.packed = _can_pack(weight_ON.dtype)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight_ON, _LIKELY_ROWS) if self.packed else weight_ON

    def __call__(self, x_TN: Tensor) -> Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x_TN, self._weight, self.bias_O, "none", [], "")
        return F.linear(x_TN, self._weight, self.bias_O)

    def rows(self) -> Tensor:
        """The weight in its plain layout, read back from what is multiplied."""
        return self._weight.to_dense() if self.packed else self._weight


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLayer:
    attention_norm_D: Tensor
    qkv: Linear
    out: Linear
    mlp_norm_D: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeights:
    """One version of the policy, ready to multiply."""

    config: LlamaConfig
    dtype: torch.dtype
    embedding_VD: Tensor
    layers: tuple[PackedLayer, ...]
    norm_D: Tensor
    head: Linear
    digest: str


def load(folder: Path, dtype: torch.dtype) -> PackedWeights:
    """From a Hugging Face folder. Raises `ModelError`."""
    config, state = weights.load(folder, dtype)
    return pack(config, state, dtype)


def load_published(path: Path, config: LlamaConfig, dtype: torch.dtype) -> PackedWeights:
    """From a published safetensors file, mapped, never read whole. Raises `ModelError`."""
    return pack(config, weights.load_file(path, config, dtype), dtype)


def pack(config: LlamaConfig, state: Mapping[str, Tensor], dtype: torch.dtype) -> PackedWeights:
    """Fuse and pack copies of `state`'s tensors (names as in `weights.parameter_shapes`)."""
    if config.tied_embeddings and "lm_head.weight" in state:
        raise ModelError("a model with tied embeddings has no lm_head.weight of its own")
    embedding_VD = state["model.embed_tokens.weight"].clone()
    layers = tuple(_pack_layer(config, state, index) for index in range(config.layers))
    head = Linear(embedding_VD if config.tied_embeddings else state["lm_head.weight"].clone())
    norm_D = state["model.norm.weight"].clone()
    packed = PackedWeights(
        config=config, dtype=dtype, embedding_VD=embedding_VD, layers=layers, norm_D=norm_D, head=head, digest=""
    )
    return replace(packed, digest=digest(packed))


def digest(packed: PackedWeights) -> str:
    """Of the tensors that multiply, under the checkpoint's names."""
    return weights.digest(_Held(packed))


def _pack_layer(config: LlamaConfig, state: Mapping[str, Tensor], index: int) -> PackedLayer:
    prefix = f"model.layers.{index}."

    def stacked(kind: str, *names: str) -> Tensor:
        return torch.cat([state[f"{prefix}{name}.{kind}"] for name in names])

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    bias_O = stacked("bias", *qkv) if config.qkv_bias else None
    return PackedLayer(
        attention_norm_D=state[prefix + "input_layernorm.weight"].clone(),
        qkv=Linear(stacked("weight", *qkv), bias_O),
        out=Linear(stacked("weight", "self_attn.o_proj")),
        mlp_norm_D=state[prefix + "post_attention_layernorm.weight"].clone(),
        gate_up=Linear(stacked("weight", "mlp.gate_proj", "mlp.up_proj")),
        down=Linear(stacked("weight", "mlp.down_proj")),
    )


class _Held(Mapping[str, Tensor]):
    """Weights that the engine holds, under the checkpoint's names, unpacked on demand.

    With tied embeddings a head that differs from the embedding appears as a parameter of its own, which
    changes the digest.
    """

    def __init__(self, packed: PackedWeights) -> None:
        self._config, self._layers = packed.config, packed.layers
        self._top = {"model.embed_tokens.weight": packed.embedding_VD, "model.norm.weight": packed.norm_D}
        self._names = list(weights.parameter_shapes(packed.config))
        rows = packed.head.rows()
        if not packed.config.tied_embeddings:
            self._top["lm_head.weight"] = rows
        elif rows is not packed.embedding_VD and not torch.equal(rows, packed.embedding_VD):
            self._top["lm_head.weight"] = rows
            self._names.append("lm_head.weight")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Tensor:
        if name in self._top:
            return self._top[name]
        _, _, index, *path, kind = name.split(".")
        return self._of_layer(self._layers[int(index)], path[-1], kind)

    def _of_layer(self, layer: PackedLayer, name: str, kind: str) -> Tensor:
        c = self._config
        q, kv = c.heads * c.head_width, c.kv_heads * c.head_width
        rows = {
            "q_proj": (layer.qkv, 0, q),
            "k_proj": (layer.qkv, q, q + kv),
            "v_proj": (layer.qkv, q + kv, q + 2 * kv),
            "gate_proj": (layer.gate_up, 0, c.mlp_width),
            "up_proj": (layer.gate_up, c.mlp_width, 2 * c.mlp_width),
            "o_proj": (layer.out, 0, c.width),
            "down_proj": (layer.down, 0, c.width),
        }
        if name == "input_layernorm":
            return layer.attention_norm_D
        if name == "post_attention_layernorm":
            return layer.mlp_norm_D
        linear, start, stop = rows[name]
        if kind == "bias":
            assert linear.bias_O is not None
            return linear.bias_O[start:stop]
        return linear.rows()[start:stop]
