"""Rotary positions and attention over one packed row of tokens.

Law: which token may see which is data (`Block`), decided by the caller; this file only computes it. Shared
context is never copied in memory between blocks of different siblings: each block reads the keys it sees.

    one row of T tokens:   |── prompt ──|─ sibling 0 ─|─ sibling 1 ─|─ sibling 2 ─|
    blocks:                 causal       sees prompt    sees prompt   sees prompt
                                         + own past     + own past    + own past

Shapes: T tokens, H heads, K key/value heads, W head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Rows [start, stop) attend to all rows of `context` and, causally, to themselves.

    Example: `Block(start=242, stop=266, context=((0, 242),))` is a sibling behind a prompt of 242 tokens.
    """

    start: int
    stop: int
    context: tuple[tuple[int, int], ...] = ()


Mask = Tensor | Sequence[Block] | None
"""Dense (T, T) mask (boolean: True may attend; floating: added to the scores), blocks, or None for causal."""


def rope_tables(positions_T: Tensor, head_width: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin, each (T, W) in fp32, for the half-split rotary embedding (Su et al. 2021, as in Llama)."""
    powers = torch.arange(0, head_width, 2, dtype=torch.float32, device=positions_T.device) / head_width
    angles = positions_T.float()[:, None] * (theta**-powers)[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x_THW: Tensor, cos_TW: Tensor, sin_TW: Tensor) -> Tensor:
    """Apply the rotary embedding to (T, heads, W)."""
    left, right = x_THW.chunk(2, dim=-1)
    turned = torch.cat((-right, left), dim=-1)
    return x_THW * cos_TW[:, None] + turned * sin_TW[:, None]


def attend(q_THW: Tensor, k_TKW: Tensor, v_TKW: Tensor, mask: Mask) -> Tensor:
    """Scaled dot-product attention over one row; returns (T, H, W)."""
    q_HTW = q_THW.transpose(0, 1)
    k_HTW = _per_query_head(k_TKW, q_THW.shape[1])
    v_HTW = _per_query_head(v_TKW, q_THW.shape[1])
    if mask is None:
        return _sdpa(q_HTW, k_HTW, v_HTW, None, causal=True).transpose(0, 1)
    if isinstance(mask, Tensor):
        if mask.dtype != torch.bool:
            mask = mask.to(q_HTW.dtype)
        return _sdpa(q_HTW, k_HTW, v_HTW, mask, causal=False).transpose(0, 1)
    outputs = [_attend_block(q_HTW, k_HTW, v_HTW, block) for block in mask]
    assert sum(b.stop - b.start for b in mask) == len(q_THW), "the blocks of a row cover it in order"
    return torch.cat(outputs, dim=1).transpose(0, 1)


def block_mask(context: int, length: int, device: torch.device | None = None) -> Tensor:
    """(length, context + length), True where a row of the block may attend."""
    mask = torch.ones(length, context + length, dtype=torch.bool, device=device)
    return mask.tril_(diagonal=context)


def _attend_block(q_HTW: Tensor, k_HTW: Tensor, v_HTW: Tensor, block: Block) -> Tensor:
    own = slice(block.start, block.stop)
    if not block.context:
        return _sdpa(q_HTW[:, own], k_HTW[:, own], v_HTW[:, own], None, causal=True)
    ranges = [*(slice(a, b) for a, b in block.context), own]
    keys = torch.cat([k_HTW[:, r] for r in ranges], dim=1)
    values = torch.cat([v_HTW[:, r] for r in ranges], dim=1)
    length = block.stop - block.start
    mask = block_mask(keys.shape[1] - length, length, q_HTW.device)
    return _sdpa(q_HTW[:, own], keys, values, mask, causal=False)


def _per_query_head(x_TKW: Tensor, heads: int) -> Tensor:
    """(T, K, W) -> (H, T, W): each key/value head repeated for its group of query heads."""
    return x_TKW.transpose(0, 1).repeat_interleave(heads // x_TKW.shape[1], dim=0)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, is_causal=causal)
    return out[0]
