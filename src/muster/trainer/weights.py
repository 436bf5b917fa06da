"""The fused copy of the masters in compute precision that a step runs on.

Law: the masters are the model; the copy exists for one set of their values. Gradients end in the masters' in fp32
after each row, so that accumulation over rows never rounds to bf16. What is frozen collects none.

    masters (fp32, Hugging Face's names) ─refresh─► Compute (bf16, fused) ─forward/backward─► leaf.grad
                     ▲                                                                      │ flush
                     └──────────────── AdamW ◄─── masters' grad (fp32, += per row) ◄────────┘
                                                          ▲ an adapter's arrive without a leaf: see AdaptedLinear

Fused: q, k and v are one matrix, gate and up are another: fewer and larger products.
"""
# torch leaves much of what it offers without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from muster.model.config import LlamaConfig
from muster.trainer.masters import Masters, Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankChange:
    """A low-rank change of some rows of a fused matrix."""

    rows: slice
    pair: Pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A matrix (out, in) with its changes already added. With `changes` those are trained, not the matrix."""

    weight: Tensor
    bias: Tensor | None = None
    changes: tuple[LowRankChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. Biases only where the model has them."""

    input_norm: Tensor
    qkv: Projection
    o: Projection
    mlp_norm: Tensor
    gate_up: Projection
    down: Projection


class Compute:
    """The fused copy of `masters` in `dtype`. Where all is trained, every tensor is a leaf that collects a gradient.

    Example: `compute = Compute(config, masters, torch.bfloat16)`, one row forward and backward, `compute.flush()`.
    """

    def __init__(self, config: LlamaConfig, masters: Masters, dtype: torch.dtype) -> None:
        self.config = config
        self._masters = masters
        self._dtype = dtype
        self._fused: list[tuple[Tensor, dict[str, int]]] = []  # leaf; the weights it joins along dim 0, their rows
        self.embed = self._leaf("model.embed_tokens.weight")
        self.layers = [self._layer(f"model.layers.{index}.") for index in range(config.layers)]
        self.norm = self._leaf("model.norm.weight")
        self.head = self.embed if config.tied_embeddings else self._leaf("lm_head.weight")

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the masters' present values."""
        for name, view in self.weights().items():
            if self._masters.moves(name):
                view.copy_(self._masters.value(name))

    @torch.no_grad()
    def flush(self) -> None:
        """Add the leaves' gradients to the masters' and clear them."""
        for leaf, rows in self._fused:
            if leaf.grad is None:
                continue
            for name, gradient in _views(leaf.grad, rows):
                master = self._masters.trained[name]
                if master.grad is None:
                    master.grad = gradient.to(master.dtype, copy=True)
                else:
                    master.grad += gradient
            leaf.grad = None

    def weights(self) -> dict[str, Tensor]:
        """Every weight under its own name: views of what is computed with."""
        return {name: view for leaf, rows in self._fused for name, view in _views(leaf.detach(), rows)}

    def _layer(self, prefix: str) -> LayerWeights:
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        heads = [attention + name for name in ("q_proj", "k_proj", "v_proj")]
        return LayerWeights(
            input_norm=self._leaf(prefix + "input_layernorm.weight"),
            qkv=self._projection(*heads, bias=self.config.qkv_bias),
            o=self._projection(attention + "o_proj"),
            mlp_norm=self._leaf(prefix + "post_attention_layernorm.weight"),
            gate_up=self._projection(mlp + "gate_proj", mlp + "up_proj"),
            down=self._projection(mlp + "down_proj"),
        )

    def _projection(self, *modules: str, bias: bool = False) -> Projection:
        weight = self._leaf(*(f"{module}.weight" for module in modules))
        changes: list[LowRankChange] = []
        end = 0
        for name, rows in self._fused[-1][1].items():
            start, end = end, end + rows
            if (pair := self._masters.pair(name)) is not None:
                changes.append(LowRankChange(rows=slice(start, end), pair=pair))
        biases = self._leaf(*(f"{module}.bias" for module in modules)) if bias else None
        return Projection(weight=weight, bias=biases, changes=tuple(changes))

    @torch.no_grad()
    def _leaf(self, *names: str) -> Tensor:
        parts = [self._masters.value(name).to(self._masters.device, self._dtype) for name in names]
        alone = len(names) == 1 and not self._masters.moves(names[0])  # nothing writes to it: no copy is needed
        leaf = parts[0] if alone else torch.cat(parts)
        self._fused.append((leaf, dict(zip(names, map(len, parts), strict=True))))
        return leaf.requires_grad_(not self._masters.frozen)


def _views(joined: Tensor, rows: dict[str, int]) -> Iterator[tuple[str, Tensor]]:
    return zip(rows, joined.split(list(rows.values())), strict=True)
