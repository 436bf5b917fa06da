"""Attention over a packed row of prefix trees, with a backward pass built from large matrix products.

Law: exact, and no shared key is computed twice. A row of trees falls into parts, each a range of queries and the few
ranges of keys that they see:

    trunk    [a, b)  sees [trunk start, b)             causal, in chunks: what lies above the diagonal is skipped
    branch   [a, b)  sees the trunk and [branch, b)    ancestors alone

Forward is the flash kernel where there is one. Backward as in FlashAttention-2 (Dao 2023, section 3.1), with the
transposed p' = exp(s' - l) recomputed from scores that were never stored:

    dv = p' do,   ds' = p' * (v do' - delta),   delta = rowsum(do * o),   dk = ds' q,   dq = ds k

The subtractions of l and delta ride in the matrix products as two more columns (a high and a low part, so that bf16
loses nothing): a product is then near 0 exactly where p is large, and rounding it is harmless.

Shapes: T rows, H query heads, K key/value heads, R = H / K, W head width; in a part M queries and J keys.
"""
# torch leaves much of what it offers without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from muster.trainer.packing import PackedRow, TokenTree

QUERIES_AT_ONCE = 256
"""Smaller chunks skip more of what lies above the diagonal; larger ones make better matrix products."""
_CHUNK_SCORES = 1024 * 1024
"""Scores per head of one part: bounds the backward pass's working memory to a few times 20 MB (9 heads, bf16)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Queries of `rows` see the keys of `ranges`, in this order, where `bias_MJ` is 0 and not minus infinity."""

    rows: slice
    ranges: tuple[slice, ...]
    bias_MJ: Tensor
    bias_transposed: Tensor  # (J, M * R): for scores of R query heads side by side

    def keys(self, x: Tensor, dim: int) -> Tensor:
        """The part's keys along `dim`; a copy only if they are in several places."""
        found = [x.narrow(dim, r.start, r.stop - r.start) for r in self.ranges]
        return found[0] if len(found) == 1 else torch.cat(found, dim)


def parts(row: PackedRow, like: Tensor, repeats: int, queries: int = QUERIES_AT_ONCE) -> list[Part]:
    """The parts of every tree of the row. `like` gives device and precision, `repeats` is R."""
    return [
        _part(rows, ranges, visible_MJ, like, repeats)
        for tree in row.trees
        for rows, ranges, visible_MJ in _ranges(tree, queries)
    ]


def attend(q_THW: Tensor, k_TKW: Tensor, v_TKW: Tensor, row: list[Part]) -> tuple[Tensor, Tensor]:
    """softmax(q k' / sqrt(W)) v, where the parts say who sees whom: (T, H, W), and its log-sum-exp (T, H)."""
    out_THW = torch.empty_like(q_THW, memory_format=torch.contiguous_format)
    lse_TH = torch.empty(q_THW.shape[:2], dtype=torch.float32, device=q_THW.device)
    for part in row:
        q, k, v = q_THW[part.rows], part.keys(k_TKW, 0), part.keys(v_TKW, 0)
        out_THW[part.rows], lse_TH[part.rows] = _attend(q, k, v, part.bias_MJ)
    return out_THW, lse_TH


def attend_backward(
    q_THW: Tensor,
    k_TKW: Tensor,
    v_TKW: Tensor,
    out_THW: Tensor,
    lse_TH: Tensor,
    grad_THW: Tensor,
    row: list[Part],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v from what `attend` took and gave."""
    (heads, width), kv_heads = q_THW.shape[1:], k_TKW.shape[1]
    scale = width**-0.5
    delta_TH = (grad_THW * out_THW).sum(-1, dtype=torch.float32)

    def queries(x_THW: Tensor, subtract_TH: Tensor) -> Tensor:  # (K, T, R, W + 2): rows are a matrix as they lie
        x = torch.cat((x_THW, *(c[..., None] for c in two_columns(-subtract_TH, x_THW.dtype))), dim=-1)
        return x.unflatten(1, (kv_heads, heads // kv_heads)).transpose(0, 1).contiguous()

    def keys(x_TKW: Tensor) -> Tensor:  # (K, T, W + 2)
        ones = torch.ones((*x_TKW.shape[:2], 2), dtype=x_TKW.dtype, device=x_TKW.device)
        return torch.cat((x_TKW, ones), dim=-1).transpose(0, 1).contiguous()

    q, grad = queries(q_THW, lse_TH), queries(grad_THW, delta_TH)
    k, v = keys(k_TKW * scale), keys(v_TKW)
    dq = torch.empty((*q.shape[:3], width), dtype=q.dtype, device=q.device)
    dk = torch.zeros((*k.shape[:2], width), dtype=torch.float32, device=q.device)
    dv = torch.zeros_like(dk)
    for part in row:
        rows, k_part, v_part = part.rows, part.keys(k, 1), part.keys(v, 1)
        q_part, grad_part = q[:, rows].flatten(1, 2), grad[:, rows].flatten(1, 2)
        bias = part.bias_transposed.expand(kv_heads, -1, -1)
        p = torch.baddbmm(bias, k_part, q_part.transpose(1, 2)).exp_()
        ds = torch.bmm(v_part, grad_part.transpose(1, 2)).mul_(p)
        dq[:, rows] = torch.bmm(ds.transpose(1, 2), k_part[..., :width]).view_as(dq[:, rows])
        _add(dk, part, torch.bmm(ds, q_part[..., :width]))
        _add(dv, part, torch.bmm(p, grad_part[..., :width]))
    return (
        dq.transpose(0, 1).flatten(1, 2),
        (dk * scale).transpose(0, 1).to(q.dtype),
        dv.transpose(0, 1).to(q.dtype),
    )


def two_columns(value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """value = high + low, each in `dtype`."""
    high = value.to(dtype)
    return high, (value - high.float()).to(dtype)


def _attend(q_MHW: Tensor, k_JKW: Tensor, v_JKW: Tensor, bias_MJ: Tensor) -> tuple[Tensor, Tensor]:
    """Output (M, H, W) and log-sum-exp (M, H) of one part."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q_MHW, k_JKW, v_JKW))
    if q.device.type == "cpu":
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = flash(q, k, v, 0.0, False, attn_mask=bias_MJ[None, None])
        return out[0].transpose(0, 1), lse[0].transpose(0, 1)
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = (q @ k.transpose(2, 3)).float() * q.shape[-1] ** -0.5 + bias_MJ
    lse = scores.logsumexp(-1)
    out = (scores - lse[..., None]).exp().to(v.dtype) @ v
    return out[0].transpose(0, 1), lse[0].transpose(0, 1)


def _add(total: Tensor, part: Part, value: Tensor) -> None:
    """Add the gradient of a part's keys where they came from."""
    lengths = [r.stop - r.start for r in part.ranges]
    for keys, piece in zip(part.ranges, value.split(lengths, dim=1), strict=True):
        total[:, keys] += piece


# --- layout -------------------------------------------------------------------------------------------


def _ranges(tree: TokenTree, queries: int) -> Iterator[tuple[slice, tuple[slice, ...], np.ndarray]]:
    """Rows, their key ranges, and who sees whom, for the trunk and each branch of a tree."""
    for rows in _chunks(tree.start, tree.stop, 0, queries):
        keys = slice(tree.start, rows.stop)
        length = rows.stop - rows.start
        visible_MJ = np.tri(length, keys.stop - keys.start, rows.start - tree.start, dtype=np.bool_)
        yield rows, (keys,), visible_MJ
    trunk = slice(tree.start, tree.stop)
    for branch in tree.branches:
        for rows in _chunks(branch.start, branch.stop, tree.stop - tree.start, queries):
            own = slice(branch.start, rows.stop)  # a branch is in depth-first order: ancestors come first
            local = slice(rows.start - branch.start, rows.stop - branch.start)
            visible_MJ = branch.visible_UU[local, : local.stop]
            if trunk.stop == trunk.start:
                yield rows, (own,), visible_MJ
                continue
            whole = np.ones((len(visible_MJ), trunk.stop - trunk.start), dtype=np.bool_)
            ranges = (slice(trunk.start, own.stop),) if own.start == trunk.stop else (trunk, own)
            yield rows, ranges, np.concatenate((whole, visible_MJ), axis=1)


def _chunks(start: int, stop: int, context: int, queries: int) -> Iterator[slice]:
    """Pieces of [start, stop), of nearly equal length, such that no piece has too many scores."""
    length = stop - start
    size = min(queries, max(1, _CHUNK_SCORES // max(1, context + length)))
    count = -(-length // size) if length else 0
    for index in range(count):
        yield slice(start + length * index // count, start + length * (index + 1) // count)


def _part(rows: slice, ranges: tuple[slice, ...], visible_MJ: np.ndarray, like: Tensor, repeats: int) -> Part:
    visible = torch.from_numpy(visible_MJ).to(like.device)
    bias_MJ = torch.zeros(visible.shape, dtype=like.dtype, device=like.device).masked_fill_(~visible, float("-inf"))
    return Part(
        rows=rows,
        ranges=ranges,
        bias_MJ=bias_MJ,
        bias_transposed=bias_MJ.repeat_interleave(repeats, 0).t().contiguous(),
    )
