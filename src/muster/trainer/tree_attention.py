"""Attention over a packed row of prefix trees, with a backward pass built from large matrix products.

Law: exact. Keys that a token sees fall in disjoint sets (its trunk; its own past), and attention over disjoint sets
combines by the log-sum-exp of each: o = sum_i exp(l_i - l) o_i, l = log sum_i exp(l_i). No shared key is copied.

    trunk     causal over itself                             one call per tree
    branches  every row sees the whole trunk                 one call per tree, no mask
              and its ancestors inside its branch            one call per bundle of branches of like length

Backward as in FlashAttention-2 (Dao 2023, section 3.1), with p = exp(s - l) recomputed, not stored:

    dv = p' do,   ds = p * (do v' - delta),   delta = rowsum(do * o),   dq = ds k,   dk = ds' q

The subtractions of l and delta ride in the matrix products as two more columns (a high and a low part, so that
bf16 loses nothing): a product is then near 0 exactly where p is large, and rounding it is harmless.

Shapes: T rows, H query heads, K key/value heads, R = H / K, W head width, B branches, U rows of a branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from muster.trainer.packing import Branch, Row, Tree

_SCORES_AT_ONCE = 32 * 1024 * 1024
"""Score elements of one product in the backward pass: bounds its working memory to about 130 MB in bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Branches of like length, padded to one. Padding repeats the first row, sees itself, and is dropped."""

    rows_BU: Tensor
    real_F: Tensor  # flat positions in rows_BU that are not padding
    hidden_BUU: Tensor  # True where a row may not see


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLayout:
    """A tree on the device: its trunk, all of its branches (which are contiguous), and their bundles."""

    trunk: slice
    branches: slice
    bundles: tuple[Bundle, ...]


def layouts(row: Row, device: torch.device) -> list[TreeLayout]:
    return [_layout(tree, device) for tree in row.trees]


def attend(q_THW: Tensor, k_TKW: Tensor, v_TKW: Tensor, trees: list[TreeLayout]) -> tuple[Tensor, Tensor]:
    """softmax(q k' / sqrt(W)) v, where the trees say who sees whom: (T, H, W), and its log-sum-exp (T, H)."""
    out_THW = torch.empty_like(q_THW, memory_format=torch.contiguous_format)
    lse_TH = torch.empty(q_THW.shape[:2], dtype=torch.float32, device=q_THW.device)
    for tree in trees:
        trunk, rest = tree.trunk, tree.branches
        has_trunk = trunk.stop > trunk.start
        if has_trunk:
            out_THW[trunk], lse_TH[trunk] = _causal(q_THW[trunk], k_TKW[trunk], v_TKW[trunk])
        for bundle in tree.bundles:
            rows = bundle.rows_BU.flatten()[bundle.real_F]
            out_THW[rows], lse_TH[rows] = _bundle(q_THW, k_TKW, v_TKW, bundle)
        if tree.bundles and has_trunk:
            out, lse = _attend(q_THW[rest][None], k_TKW[trunk][None], v_TKW[trunk][None], None, causal=False)
            own = (out_THW[rest], lse_TH[rest])
            out_THW[rest], lse_TH[rest] = _combine((out[0], lse[0]), own)
    return out_THW, lse_TH


def attend_backward(
    q_THW: Tensor,
    k_TKW: Tensor,
    v_TKW: Tensor,
    out_THW: Tensor,
    lse_TH: Tensor,
    grad_THW: Tensor,
    trees: list[TreeLayout],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v from what `attend` took and gave."""
    pass_ = _Backward(q_THW, k_TKW, v_TKW, out_THW, lse_TH, grad_THW)
    for tree in trees:
        pass_.tree(tree)
    return pass_.gradients()


# --- forward ------------------------------------------------------------------------------------------


def _causal(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = _attend(q[None], k[None], v[None], None, causal=True)
    return out[0], lse[0]


def _bundle(q_THW: Tensor, k_TKW: Tensor, v_TKW: Tensor, bundle: Bundle) -> tuple[Tensor, Tensor]:
    rows = bundle.rows_BU
    bias_BUU = torch.zeros(bundle.hidden_BUU.shape, dtype=q_THW.dtype, device=q_THW.device)
    bias_BUU.masked_fill_(bundle.hidden_BUU, float("-inf"))
    out, lse = _attend(q_THW[rows], k_TKW[rows], v_TKW[rows], bias_BUU, causal=False)
    return out.flatten(0, 1)[bundle.real_F], lse.flatten(0, 1)[bundle.real_F]


def _attend(q: Tensor, k: Tensor, v: Tensor, bias_BUU: Tensor | None, *, causal: bool) -> tuple[Tensor, Tensor]:
    """(B, rows, heads, W) in; output (B, rows, H, W) and log-sum-exp (B, rows, H)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = None if bias_BUU is None else bias_BUU[:, None]
    if q.device.type == "cpu":
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = flash(q, k, v, 0.0, causal, attn_mask=mask)
        return out.transpose(1, 2), lse.transpose(1, 2)
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = (q @ k.transpose(2, 3)).float() * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(-1)
    out = (scores - lse[..., None]).exp().to(v.dtype) @ v
    return out.transpose(1, 2), lse.transpose(1, 2)


def _combine(one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys."""
    lse = torch.logaddexp(one[1], two[1])
    weight_one, weight_two = ((part - lse).exp()[..., None] for part in (one[1], two[1]))
    return (one[0] * weight_one + two[0] * weight_two).to(one[0].dtype), lse


# --- backward -----------------------------------------------------------------------------------------


class _Backward:
    """Gradients under construction. Head-major copies, so that a head's rows are one matrix."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse_TH: Tensor, grad: Tensor) -> None:
        heads, kv_heads, width = q.shape[1], k.shape[1], q.shape[2]
        self.width, self.scale = width, width**-0.5
        delta_TH = (grad.float() * out.float()).sum(-1)

        def queries(x_THW: Tensor, subtract_TH: Tensor) -> Tensor:  # (K, R, T, W + 2)
            x = torch.cat((x_THW, *two_columns(-subtract_TH, x_THW.dtype)), dim=-1)
            return x.unflatten(1, (kv_heads, heads // kv_heads)).permute(1, 2, 0, 3).contiguous()

        def keys(x_TKW: Tensor) -> Tensor:  # (K, T, W + 2)
            ones = torch.ones((*x_TKW.shape[:2], 2), dtype=x_TKW.dtype, device=x_TKW.device)
            return torch.cat((x_TKW, ones), dim=-1).transpose(0, 1).contiguous()

        self.q, self.grad = queries(q * self.scale, lse_TH), queries(grad, delta_TH)
        self.k, self.v = keys(k), keys(v)
        self.dq = torch.zeros((*self.q.shape[:3], width), dtype=q.dtype, device=q.device)
        self.dk = torch.zeros((*self.k.shape[:2], width), dtype=torch.float32, device=q.device)
        self.dv = torch.zeros_like(self.dk)

    def tree(self, tree: TreeLayout) -> None:
        heads, trunk = self.q.shape[0] * self.q.shape[1], tree.trunk
        for rows in _chunks(trunk, heads * (trunk.stop - trunk.start)):
            self._pair(rows, slice(trunk.start, rows.stop), causal=True)
        for bundle in tree.bundles:
            self._own(bundle)
        if trunk.stop > trunk.start:
            for rows in _chunks(tree.branches, heads * (trunk.stop - trunk.start)):
                self._pair(rows, trunk, causal=False)

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        dq_THW = self.dq.flatten(0, 1).transpose(0, 1) * self.scale
        dtype = self.dq.dtype
        return dq_THW, self.dk.transpose(0, 1).to(dtype), self.dv.transpose(0, 1).to(dtype)

    def _pair(self, rows: slice, keys: slice, *, causal: bool) -> None:
        """Queries of `rows` on keys of `keys`; causal: aligned at their ends."""
        q, grad = self.q[:, :, rows].flatten(1, 2), self.grad[:, :, rows].flatten(1, 2)
        hidden = None
        if causal:
            shape = (rows.stop - rows.start, keys.stop - keys.start)
            hidden = torch.ones(shape, dtype=torch.bool, device=q.device).triu_(1 + shape[1] - shape[0])
        dq, dk, dv = self._products(q, grad, self.k[:, keys], self.v[:, keys], hidden)
        self.dq[:, :, rows] += dq.unflatten(1, (-1, rows.stop - rows.start))
        self.dk[:, keys] += dk
        self.dv[:, keys] += dv

    def _own(self, bundle: Bundle) -> None:
        rows_BU = bundle.rows_BU
        kv_heads, repeats = self.q.shape[:2]
        q, grad = (
            x[:, :, rows_BU].permute(0, 2, 1, 3, 4).flatten(2, 3).flatten(0, 1) for x in (self.q, self.grad)
        )  # (K * B, R * U, W + 2)
        k, v = (x[:, rows_BU].flatten(0, 1) for x in (self.k, self.v))
        dq, dk, dv = self._products(q, grad, k, v, bundle.hidden_BUU[None, :, None])
        rows, real = rows_BU.flatten()[bundle.real_F], bundle.real_F
        dq = dq.view(kv_heads, len(rows_BU), repeats, -1, self.width).transpose(1, 2).flatten(2, 3)
        self.dq[:, :, rows] = dq[:, :, real]
        self.dk[:, rows] = dk.view(kv_heads, -1, self.width)[:, real].float()
        self.dv[:, rows] = dv.view(kv_heads, -1, self.width)[:, real].float()

    def _products(
        self, q: Tensor, grad: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The five products; `hidden` broadcasts to (K, B, R, U, keys) or (K, R, rows, keys) views of the scores."""
        width = self.width
        p = torch.bmm(q, k.transpose(1, 2)).exp_()
        if hidden is not None:
            repeats = self.q.shape[1]
            shape = (self.q.shape[0], -1, repeats, p.shape[1] // repeats, p.shape[2])
            p.view(shape).masked_fill_(hidden, 0.0)
        ds = torch.bmm(grad, v.transpose(1, 2)).mul_(p)
        dq = torch.bmm(ds, k[..., :width])
        dk = torch.bmm(ds.transpose(1, 2), q[..., :width])
        dv = torch.bmm(p.transpose(1, 2), grad[..., :width])
        return dq, dk, dv


def two_columns(value_TH: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """value = high + low, each in `dtype`, as columns."""
    high = value_TH.to(dtype)
    low = (value_TH - high.float()).to(dtype)
    return high[..., None], low[..., None]


def _chunks(rows: slice, scores_per_row: int) -> Iterator[slice]:
    size = max(1, _SCORES_AT_ONCE // max(1, scores_per_row))
    for start in range(rows.start, rows.stop, size):
        yield slice(start, min(start + size, rows.stop))


# --- layout -------------------------------------------------------------------------------------------


def _layout(tree: Tree, device: torch.device) -> TreeLayout:
    stop = tree.branches[-1].stop if tree.branches else tree.stop
    return TreeLayout(
        trunk=slice(tree.start, tree.stop),
        branches=slice(tree.stop, stop),
        bundles=tuple(_bundled(branches, device) for branches in _of_like_length(tree.branches)),
    )


def _of_like_length(branches: tuple[Branch, ...]) -> Iterator[list[Branch]]:
    """Longest first; a bundle ends where padding would waste more than a quarter of a branch."""
    bundle: list[Branch] = []
    for branch in sorted(branches, key=lambda b: (b.start - b.stop, b.start)):
        if bundle and 4 * (branch.stop - branch.start) < 3 * (bundle[0].stop - bundle[0].start):
            yield bundle
            bundle = []
        bundle.append(branch)
    if bundle:
        yield bundle


def _bundled(branches: list[Branch], device: torch.device) -> Bundle:
    length = branches[0].stop - branches[0].start
    rows_BU = np.zeros((len(branches), length), dtype=np.int64)
    visible_BUU = np.zeros((len(branches), length, length), dtype=np.bool_)
    visible_BUU[:, np.arange(length), np.arange(length)] = True
    real_BU = np.zeros((len(branches), length), dtype=np.bool_)
    for index, branch in enumerate(branches):
        own = branch.stop - branch.start
        rows_BU[index] = branch.start
        rows_BU[index, :own] = np.arange(branch.start, branch.stop)
        visible_BUU[index, :own, :own] = branch.visible_UU
        real_BU[index, :own] = True
    return Bundle(
        rows_BU=torch.from_numpy(rows_BU).to(device),
        real_F=torch.from_numpy(np.flatnonzero(real_BU)).to(device),
        hidden_BUU=torch.from_numpy(~visible_BUU).to(device),
    )
