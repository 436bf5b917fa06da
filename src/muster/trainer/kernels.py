"""The differentiable pieces of a layer that plain autograd would run in too many passes over memory.

Law: each is a `torch.autograd.Function` whose backward is written out, saves as little as it can, and equals
autograd's on the plain formula (a test compares them in fp64).

Shapes: T rows, D width, F MLP width, H query heads, K key/value heads, W head width, V words, N trained tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from muster.trainer.tree_attention import TreeLayout, attend, attend_backward, two_columns

_LOGIT_ROWS = 256
"""Rows of logits in memory at once: 25 MB in bf16 for 49,152 words, which stays in cache."""
_GRADIENT_ROWS = 1024
"""Rows of logit gradients at once: the product that fills the head's gradient wants a deep inner dimension."""


class RMSNorm(torch.autograd.Function):
    """x / rms(x) * weight (Zhang and Sennrich 2019): x (T, D) in fp32, result in the weight's dtype."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        mean_square_T1 = torch.linalg.vector_norm(x_TD, dim=-1, keepdim=True).square_().div_(x_TD.shape[-1])
        inverse_T1 = mean_square_T1.add_(eps).rsqrt_()
        ctx.save_for_backward(x_TD, weight_D, inverse_T1)
        return (x_TD * inverse_T1).to(weight_D.dtype) * weight_D

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        # y = u w, u = x i, i = (mean x^2 + eps)^(-1/2)  =>  dx = i (w dy - u mean(u w dy)), dw = sum_T(u dy)
        (grad_TD,) = grads
        x_TD, weight_D, inverse_T1 = ctx.saved_tensors
        unit_TD = x_TD * inverse_T1
        grad_TD = grad_TD.to(x_TD.dtype)
        product_TD = unit_TD * grad_TD
        weight_wide_D = weight_D.to(x_TD.dtype)
        grad_weight_D = product_TD.sum(0).to(weight_D.dtype)
        mean_T1 = torch.mv(product_TD, weight_wide_D).div_(x_TD.shape[-1])[:, None]
        grad_x_TD = grad_TD.mul_(weight_wide_D) if grad_TD is not grads[0] else grad_TD * weight_wide_D
        grad_x_TD.addcmul_(unit_TD, mean_T1, value=-1).mul_(inverse_T1)
        return grad_x_TD, grad_weight_D, None


class SwiGLU(torch.autograd.Function):
    """silu(gate) * up, from both in one tensor (T, 2F): gate first (Shazeer 2020)."""

    @staticmethod
    def forward(ctx: Any, gate_up_T2F: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up_T2F)
        gate_TF, up_TF = gate_up_T2F.chunk(2, dim=-1)
        return F.silu(gate_TF).mul_(up_TF)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (grad_TF,) = grads
        (gate_up_T2F,) = ctx.saved_tensors
        gate_TF, up_TF = gate_up_T2F.chunk(2, dim=-1)
        grad_T2F = torch.empty_like(gate_up_T2F)
        grad_gate_TF, grad_up_TF = grad_T2F.chunk(2, dim=-1)
        torch.mul(F.silu(gate_TF), grad_TF, out=grad_up_TF)
        torch.ops.aten.silu_backward.grad_input(grad_TF * up_TF, gate_TF, grad_input=grad_gate_TF)
        return grad_T2F


class RopeAttention(torch.autograd.Function):
    """Rotary positions on q and k, then tree attention. qkv (T, H + 2K, W) in; (T, H, W) out."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        cos_T1W: Tensor,
        sin_T1W: Tensor,
        trees: list[TreeLayout],
        heads: int,
        kv_heads: int,
    ) -> Tensor:
        rotated = _rotate(qkv[:, : heads + kv_heads], cos_T1W, sin_T1W)
        q_THW, k_TKW, v_TKW = rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :]
        out_THW, lse_TH = attend(q_THW, k_TKW, v_TKW, trees)
        ctx.save_for_backward(q_THW, k_TKW, v_TKW, out_THW, lse_TH, cos_T1W, sin_T1W)
        ctx.trees = trees
        return out_THW

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        q_THW, k_TKW, v_TKW, out_THW, lse_TH, cos_T1W, sin_T1W = ctx.saved_tensors
        dq_THW, dk_TKW, dv_TKW = attend_backward(q_THW, k_TKW, v_TKW, out_THW, lse_TH, grads[0], ctx.trees)
        back = _rotate(torch.cat((dq_THW, dk_TKW), dim=1), cos_T1W, -sin_T1W)
        return torch.cat((back, dv_TKW), dim=1), None, None, None, None, None


def _rotate(x: Tensor, cos_T1W: Tensor, sin_T1W: Tensor) -> Tensor:
    """Half-split rotary embedding of (T, heads, W); the tables hold W / 2 angles. Its inverse: minus sin."""
    left, right = x.chunk(2, dim=-1)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    out_left, out_right = out.chunk(2, dim=-1)
    torch.mul(left, cos_T1W, out=out_left).addcmul_(right, sin_T1W, value=-1)
    torch.mul(right, cos_T1W, out=out_right).addcmul_(left, sin_T1W)
    return out


class LogProbabilities(torch.autograd.Function):
    """log softmax(hidden @ weight' / temperature) at N (row, word) pairs, in fp32, as the engine computes it.

    hidden_MD: M distinct rows; row_N: which of them predicts each token. Logits exist a few rows at a time and are
    computed again in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, weight_VD: Tensor, row_N: Tensor, word_N: Tensor, temperature: float
    ) -> Tensor:
        lse_M = torch.empty(len(hidden_MD), dtype=torch.float32, device=hidden_MD.device)
        logprobs_N = torch.empty(len(row_N), dtype=torch.float32, device=hidden_MD.device)
        for start in range(0, len(hidden_MD), _LOGIT_ROWS):
            rows = slice(start, start + _LOGIT_ROWS)
            logits = F.linear(hidden_MD[rows], weight_VD).float().div_(temperature)
            lse_M[rows] = logits.logsumexp(-1)
            here = torch.nonzero((row_N >= start) & (row_N < start + _LOGIT_ROWS))[:, 0]
            logprobs_N[here] = logits[row_N[here] - start, word_N[here]] - lse_M[row_N[here]]
        ctx.save_for_backward(hidden_MD, weight_VD, row_N, word_N, lse_M, logprobs_N)
        ctx.temperature = temperature
        return logprobs_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        # d / d logits = (sum of the row's coefficients at the word - their total * softmax) / temperature
        hidden_MD, weight_VD, row_N, word_N, lse_M, logprobs_N = ctx.saved_tensors
        grad_N = grads[0] / ctx.temperature
        total_M = torch.zeros_like(lse_M).index_add_(0, row_N, grad_N)
        pairs = _target_gradients(row_N * len(weight_VD) + word_N, grad_N, total_M[row_N] * logprobs_N.exp())
        softmax = _Softmax(hidden_MD, weight_VD, lse_M, ctx.temperature)
        grad_hidden_MD = torch.empty_like(hidden_MD)
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32)
        for start in range(0, len(hidden_MD), _GRADIENT_ROWS):
            rows = slice(start, min(start + _GRADIENT_ROWS, len(hidden_MD)))
            grad_logits = softmax.scaled(rows, -total_M[rows])
            words = len(weight_VD)
            here = (pairs[0] >= start * words) & (pairs[0] < rows.stop * words)
            grad_logits.view(-1)[pairs[0][here] - start * words] = pairs[1][here].to(grad_logits.dtype)
            torch.mm(grad_logits, weight_VD, out=grad_hidden_MD[rows])
            grad_weight_VD += grad_logits.t() @ hidden_MD[rows]
        return grad_hidden_MD, grad_weight_VD.to(weight_VD.dtype), None, None, None


def _target_gradients(pair_N: Tensor, grad_N: Tensor, expected_N: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct (row, word) pairs and the exact gradient of their logits.

    In fp32: at a token that the policy is sure of, 1 - softmax would vanish in bf16.
    """
    distinct, index_N = torch.unique(pair_N, return_inverse=True)
    chosen = torch.zeros(len(distinct), dtype=grad_N.dtype, device=grad_N.device).index_add_(0, index_N, grad_N)
    expected = torch.empty_like(chosen)
    expected[index_N] = expected_N
    return distinct, chosen - expected


class _Softmax:
    """Rows of softmax(logits / temperature) times a number each, without fp32 logits.

    logits - temperature * lse comes out of one product (two more columns, as in `tree_attention`).
    """

    def __init__(self, hidden_MD: Tensor, weight_VD: Tensor, lse_M: Tensor, temperature: float) -> None:
        columns = two_columns(lse_M * -temperature, hidden_MD.dtype)
        ones_V2 = torch.ones((len(weight_VD), 2), dtype=weight_VD.dtype, device=weight_VD.device)
        self._hidden = torch.cat((hidden_MD, *columns), dim=-1)
        self._weight = torch.cat((weight_VD, ones_V2), dim=-1).t()
        self._temperature = temperature

    def scaled(self, rows: slice, factor_M: Tensor) -> Tensor:
        hidden = self._hidden[rows]
        out = torch.empty((len(hidden), self._weight.shape[1]), dtype=hidden.dtype, device=hidden.device)
        parts = (x.split(_LOGIT_ROWS) for x in (out, hidden, factor_M.to(hidden.dtype)[:, None]))
        for block, inputs, factor in zip(*parts, strict=True):
            torch.mm(inputs, self._weight, out=block)
            block.div_(self._temperature).exp_().mul_(factor)
        return out
