"""Master weights in fp32, and the fused copy in compute precision that a step runs on.

Law: the master state is the model. The copy exists for one set of master values; its gradients are added to the
masters' in fp32 after each row, so that accumulation over rows never rounds to bf16.

    masters (fp32, Hugging Face's names) ─refresh─► Compute (bf16 leaves, fused) ─forward/backward─► leaf.grad
                     ▲                                                                      │ flush
                     └──────────────── AdamW ◄─── masters' grad (fp32, += per row) ◄────────┘

Fused: q, k and v are one matrix, gate and up are another: fewer and larger products.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from muster.model.config import LlamaConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. Shapes (out, in); biases only where the model has them."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    o: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Compute:
    """The fused copy of `masters` in `dtype`. Every tensor is a leaf that collects a gradient.

    Example: `compute = Compute(config, masters, torch.bfloat16)`, one row forward and backward, `compute.flush()`.
    """

    def __init__(self, config: LlamaConfig, masters: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        self.config = config
        self._masters = masters
        self._fused: list[tuple[Tensor, list[Tensor]]] = []  # leaf, the masters it joins along dim 0
        self._dtype = dtype
        self.embed = self._leaf("model.embed_tokens.weight")
        self.layers = [self._layer(f"model.layers.{index}.") for index in range(config.layers)]
        self.norm = self._leaf("model.norm.weight")
        self.head = self.embed if config.tied_embeddings else self._leaf("lm_head.weight")

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the masters' present values."""
        for leaf, parts in self._fused:
            for view, part in _views(leaf, parts):
                view.copy_(part)

    @torch.no_grad()
    def flush(self) -> None:
        """Add the leaves' gradients to the masters' and clear them."""
        for leaf, parts in self._fused:
            if leaf.grad is None:
                continue
            for view, part in _views(leaf.grad, parts):
                if part.grad is None:
                    part.grad = view.to(part.dtype, copy=True)
                else:
                    part.grad += view
            leaf.grad = None

    def _layer(self, prefix: str) -> LayerWeights:
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        heads = ("q_proj", "k_proj", "v_proj")
        biases = [f"{attention}{name}.bias" for name in heads]
        return LayerWeights(
            input_norm=self._leaf(prefix + "input_layernorm.weight"),
            qkv=self._leaf(*(f"{attention}{name}.weight" for name in heads)),
            qkv_bias=self._leaf(*biases) if self.config.qkv_bias else None,
            o=self._leaf(attention + "o_proj.weight"),
            mlp_norm=self._leaf(prefix + "post_attention_layernorm.weight"),
            gate_up=self._leaf(mlp + "gate_proj.weight", mlp + "up_proj.weight"),
            down=self._leaf(mlp + "down_proj.weight"),
        )

    def _leaf(self, *names: str) -> Tensor:
        parts = [self._masters[name] for name in names]
        leaf = torch.cat([part.detach().to(self._dtype) for part in parts]).requires_grad_()
        self._fused.append((leaf, parts))
        return leaf


def _views(joined: Tensor, parts: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(joined.split([len(part) for part in parts]), parts, strict=True)
