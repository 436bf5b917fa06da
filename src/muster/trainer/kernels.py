"""The differentiable pieces of a layer that plain autograd would run in too many passes over memory.

Law: each is a `torch.autograd.Function` whose backward is written out, saves as little as it can, and equals
autograd's on the plain formula (a test compares them in fp64).

Shapes: T rows, D width, F MLP width, H query heads, K key/value heads, W head width.
"""
# torch leaves much of what it offers without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from muster.trainer.tree_attention import Part, attend, attend_backward


class RMSNormFunction(torch.autograd.Function):
    """x / rms(x) * weight (Zhang and Sennrich 2019): x (T, D) in fp32, result in the weight's dtype."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        mean_square_T1 = torch.linalg.vector_norm(x_TD, dim=-1, keepdim=True).square_().div_(x_TD.shape[-1])
        inverse_T1 = mean_square_T1.add_(eps).rsqrt_()
        ctx.save_for_backward(x_TD, weight_D, inverse_T1)
        return (x_TD * inverse_T1).mul_(weight_D.to(x_TD.dtype)).to(weight_D.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        # y = u w, u = x i, i = (mean x^2 + eps)^(-1/2)  =>  dx = i (w dy - u mean(u w dy)), dw = sum_T(u dy)
        (grad_TD,) = grads
        x_TD, weight_D, inverse_T1 = ctx.saved_tensors
        unit_TD = x_TD * inverse_T1
        grad_TD = grad_TD.to(x_TD.dtype)
        product_TD = unit_TD * grad_TD
        weight_wide_D = weight_D.to(x_TD.dtype)
        grad_weight_D = product_TD.sum(0).to(weight_D.dtype) if ctx.needs_input_grad[1] else None
        mean_T1 = torch.mv(product_TD, weight_wide_D).div_(x_TD.shape[-1])[:, None]
        grad_x_TD = grad_TD.mul_(weight_wide_D) if grad_TD is not grads[0] else grad_TD * weight_wide_D
        grad_x_TD.addcmul_(unit_TD, mean_T1, value=-1).mul_(inverse_T1)
        return grad_x_TD, grad_weight_D, None


class AdaptedLinear(torch.autograd.Function):
    """x W'^T + bias with W' = W + scale B A merged beforehand (O, I); the gradient is that of A and B alone.

    `changes` holds, for each change, its first row, the row after its last, and its scale; `matrices` A (R, I) and
    B (O of those rows, R) of each in turn. The dense gradient is never formed: two thin products take its place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_TI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        changes: tuple[tuple[int, int, float], ...],
        *matrices: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(x_TI, weight_OI, *matrices)
        ctx.changes = changes
        return F.linear(x_TI, weight_OI, bias_O)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # y' = W' x', G = dy' x (dense)  =>  dB = scale G A' = scale dy' (x A'), dA = scale B' G = scale (dy B)' x
        (grad_TO,) = grads
        x_TI, weight_OI, *matrices = ctx.saved_tensors
        grad_x_TI = grad_TO @ weight_OI if ctx.needs_input_grad[0] else None
        found: list[Tensor] = []
        pairs = zip(matrices[::2], matrices[1::2], strict=True)
        for (start, end, scale), (a_RI, b_OR) in zip(ctx.changes, pairs, strict=True):
            here_TO = grad_TO[:, start:end]
            inner_TR = x_TI @ a_RI.to(x_TI.dtype).t()
            back_TR = here_TO @ b_OR.to(here_TO.dtype)
            found += [
                (back_TR.t() @ x_TI).to(a_RI.dtype).mul_(scale),
                (here_TO.t() @ inner_TR).to(b_OR.dtype).mul_(scale),
            ]
        return grad_x_TI, None, None, None, *found


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
        parts: list[Part],
        heads: int,
        kv_heads: int,
    ) -> Tensor:
        rotated = _rotate(qkv[:, : heads + kv_heads], cos_T1W, sin_T1W)
        q_THW, k_TKW, v_TKW = rotated[:, :heads], rotated[:, heads:], qkv[:, heads + kv_heads :]
        out_THW, lse_TH = attend(q_THW, k_TKW, v_TKW, parts)
        ctx.save_for_backward(q_THW, k_TKW, v_TKW, out_THW, lse_TH, cos_T1W, sin_T1W)
        ctx.parts = parts
        return out_THW

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        q_THW, k_TKW, v_TKW, out_THW, lse_TH, cos_T1W, sin_T1W = ctx.saved_tensors
        dq_THW, dk_TKW, dv_TKW = attend_backward(q_THW, k_TKW, v_TKW, out_THW, lse_TH, grads[0], ctx.parts)
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
