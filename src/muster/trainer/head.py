"""Log-probabilities of chosen words over a large vocabulary, without keeping logits and without losing digits.

Law: bf16 products, fp32 answers. A bf16 logit of 20 is rounded by 0.06, which would be most of the difference between
trainer and engine. So a number near the row's result is subtracted inside the matrix product (two more columns, a
high and a low part): what comes out is near 0 exactly where the softmax is large, and rounding it is harmless.

    forward   z = h w' - h w_target ─► log pi = -log sum exp(z / T)
    backward  z = h w' - T lse      ─► softmax = exp(z / T);  targets: 1 - softmax, in fp32, from log pi

Logits exist a few rows at a time and are computed again in the backward pass.
Shapes: M distinct hidden rows, D width, V words, N (row, word) pairs.
"""
# torch leaves much of what it offers without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from muster.trainer.tree_attention import two_columns

_LOGIT_ROWS = 256
"""Rows of logits in memory at once: 25 MB in bf16 for 49,152 words, which stays in cache."""
_GRADIENT_ROWS = 1024
"""Rows of logit gradients at once: the product that fills the head's gradient wants a deep inner dimension."""
_LEAST_LOGPROB = -80.0
"""exp(80) is finite in fp32 and bf16; a word less likely than this is reported as this unlikely."""


class LogProbabilities(torch.autograd.Function):
    """log softmax(hidden @ weight' / temperature) at N (row, word) pairs, fp32."""

    @staticmethod
    def forward(
        ctx: Any, hidden_MD: Tensor, weight_VD: Tensor, row_N: Tensor, word_N: Tensor, temperature: float
    ) -> Tensor:
        target_N = _target_logits(hidden_MD, weight_VD, row_N, word_N)
        shift_M = torch.full((len(hidden_MD),), -torch.inf, device=hidden_MD.device)
        shift_M.scatter_reduce_(0, row_N, target_N, "amax")
        shifted = ShiftedLogits(hidden_MD, weight_VD, temperature)
        excess_M = torch.cat(
            [
                block.clamp_(max=-_LEAST_LOGPROB).exp_().sum(-1, dtype=torch.float32)
                for block in shifted.blocks(slice(0, len(hidden_MD)), shift_M)
            ]
        ).log_()
        logprobs_N = (target_N - shift_M[row_N]) / temperature - excess_M[row_N]
        lse_M = shift_M / temperature + excess_M
        ctx.save_for_backward(hidden_MD, weight_VD, row_N, word_N, lse_M, logprobs_N)
        ctx.temperature, ctx.shifted = temperature, shifted
        return logprobs_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        # d / d logits = (sum of the row's coefficients at the word - their total * softmax) / temperature
        hidden_MD, weight_VD, row_N, word_N, lse_M, logprobs_N = ctx.saved_tensors
        words, shifted = len(weight_VD), ctx.shifted
        grad_N = grads[0] / ctx.temperature
        total_M = torch.zeros_like(lse_M).index_add_(0, row_N, grad_N)
        at, exact = _target_gradients(row_N * words + word_N, grad_N, total_M[row_N] * logprobs_N.exp())
        grad_hidden_MD = torch.empty_like(hidden_MD)
        trains_head = ctx.needs_input_grad[1]
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if trains_head else None
        for start in range(0, len(hidden_MD), _GRADIENT_ROWS):
            rows = slice(start, min(start + _GRADIENT_ROWS, len(hidden_MD)))
            factors = (-total_M[rows]).to(hidden_MD.dtype)[:, None].split(_LOGIT_ROWS)
            blocks = shifted.blocks(rows, lse_M * ctx.temperature)
            grad_logits = torch.cat([b.exp_().mul_(f) for b, f in zip(blocks, factors, strict=True)])
            here = (at >= start * words) & (at < rows.stop * words)
            grad_logits.view(-1)[at[here] - start * words] = exact[here].to(grad_logits.dtype)
            torch.mm(grad_logits, weight_VD, out=grad_hidden_MD[rows])
            if grad_weight_VD is not None:
                grad_weight_VD += grad_logits.t() @ hidden_MD[rows]
        grad_weight_VD = None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype)
        return grad_hidden_MD, grad_weight_VD, None, None, None


class ShiftedLogits:
    """(hidden @ weight' - shift) / temperature, some rows at a time, rounded after the subtraction."""

    def __init__(self, hidden_MD: Tensor, weight_VD: Tensor, temperature: float) -> None:
        ones_V2 = torch.ones((len(weight_VD), 2), dtype=weight_VD.dtype, device=weight_VD.device)
        self._hidden = hidden_MD
        self._weight = torch.cat((weight_VD, ones_V2), dim=-1).t()
        self._temperature = temperature

    def blocks(self, rows: slice, shift_M: Tensor) -> Iterator[Tensor]:
        """Blocks of `_LOGIT_ROWS` rows of `rows`; the caller may overwrite them. shift_M: fp32, for all rows."""
        for start in range(rows.start, rows.stop, _LOGIT_ROWS):
            part = slice(start, min(start + _LOGIT_ROWS, rows.stop))
            columns = two_columns(-shift_M[part], self._hidden.dtype)
            inputs = torch.cat((self._hidden[part], *(c[:, None] for c in columns)), dim=-1)
            yield (inputs @ self._weight).div_(self._temperature)


def _target_logits(hidden_MD: Tensor, weight_VD: Tensor, row_N: Tensor, word_N: Tensor) -> Tensor:
    """hidden . weight at the pairs, accumulated in fp32."""
    return torch.linalg.vecdot(hidden_MD[row_N].float(), weight_VD[word_N].float())


def _target_gradients(pair_N: Tensor, grad_N: Tensor, expected_N: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct pairs (row * V + word) and the gradient of their logits.

    In fp32, because at a word that the policy is sure of, 1 - softmax would vanish in bf16.
    """
    distinct, index_N = torch.unique(pair_N, return_inverse=True)
    chosen = torch.zeros(len(distinct), dtype=grad_N.dtype, device=grad_N.device).index_add_(0, index_N, grad_N)
    expected = torch.empty_like(chosen)
    expected[index_N] = expected_N
    return distinct, chosen - expected
