"""The forward pass over one packed row, arranged for training throughput.

Law: the same function as `model.llama` (a test holds them together), in fewer passes over memory. The residual
stream is fp32; matrix products and what they feed run in the compute precision.

    tokens_T ─► embed ─► (norm ─► qkv ─► rope ─► tree attention ─► o, norm ─► gate, up ─► down) x layers ─► norm

Shapes: T rows, D width, H query heads, K key/value heads, W head width, F MLP width.
"""
# torch leaves much of what it offers without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from muster.model.attention import rope_tables
from muster.model.config import LlamaConfig
from muster.trainer.head import LogProbabilities
from muster.trainer.kernels import AdaptedLinear, RMSNormFunction, RopeAttention, SwiGLU
from muster.trainer.packing import PackedRow
from muster.trainer.tree_attention import Part, parts
from muster.trainer.weights import Compute, LayerWeights, Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTensors:
    """A row on the device. M rows predict something; token n is predicted by the row_N[n]-th of them."""

    tokens_T: Tensor
    cos_T1W: Tensor  # (T, 1, W / 2), fp32 angles in the compute precision
    sin_T1W: Tensor
    parts: list[Part]
    predicting_M: Tensor
    row_N: Tensor
    word_N: Tensor


def row_tensors(row: PackedRow, config: LlamaConfig, like: Tensor) -> RowTensors:
    """`like` gives device and precision."""
    device = like.device
    positions_T = torch.from_numpy(row.positions_T).to(device)
    half = config.head_width // 2
    predicting_M, row_N = np.unique(row.predict_N, return_inverse=True)
    cos_TW, sin_TW = rope_tables(positions_T, config.head_width, config.rope_theta)
    return RowTensors(
        tokens_T=torch.from_numpy(row.tokens_T).to(device).long(),
        cos_T1W=cos_TW[:, None, :half].to(like.dtype),
        sin_T1W=sin_TW[:, None, :half].to(like.dtype),
        parts=parts(row, like, config.heads // config.kv_heads),
        predicting_M=torch.from_numpy(predicting_M).to(device).long(),
        row_N=torch.from_numpy(row_N).to(device).long(),
        word_N=torch.from_numpy(row.targets_N).to(device).long(),
    )


def hidden(compute: Compute, row: RowTensors, *, checkpointing: bool = False) -> Tensor:
    """Final normalised hidden states (T, D) in the compute precision."""
    config = compute.config
    x_TD = F.embedding(row.tokens_T, compute.embed).float()
    for weights in compute.layers:
        if checkpointing and torch.is_grad_enabled():
            x_TD = checkpoint(_layer, config, weights, x_TD, row, use_reentrant=False)
        else:
            x_TD = _layer(config, weights, x_TD, row)
    return RMSNormFunction.apply(x_TD, compute.norm, config.rms_eps)


def _layer(config: LlamaConfig, weights: LayerWeights, x_TD: Tensor, row: RowTensors) -> Tensor:
    normed_TD = RMSNormFunction.apply(x_TD, weights.input_norm, config.rms_eps)
    qkv = _project(normed_TD, weights.qkv).unflatten(-1, (-1, config.head_width))
    mixed_THW = RopeAttention.apply(qkv, row.cos_T1W, row.sin_T1W, row.parts, config.heads, config.kv_heads)
    x_TD = x_TD + _project(mixed_THW.flatten(1), weights.o)
    normed_TD = RMSNormFunction.apply(x_TD, weights.mlp_norm, config.rms_eps)
    inner_TF = SwiGLU.apply(_project(normed_TD, weights.gate_up))
    return x_TD + _project(inner_TF, weights.down)


def _project(x_TI: Tensor, by: Projection) -> Tensor:
    if not by.changes:
        return F.linear(x_TI, by.weight, by.bias)
    where = tuple((change.rows.start, change.rows.stop, change.pair.scale) for change in by.changes)
    matrices = [matrix for change in by.changes for matrix in (change.pair.a_RI, change.pair.b_OR)]
    return AdaptedLinear.apply(x_TI, by.weight, by.bias, where, *matrices)


def logprobs(compute: Compute, hidden_TD: Tensor, row: RowTensors, temperature: float) -> Tensor:
    """Log-probability (N,) of each trained token of the row, after temperature, in fp32."""
    return LogProbabilities.apply(hidden_TD[row.predicting_M], compute.head, row.row_N, row.word_N, temperature)
