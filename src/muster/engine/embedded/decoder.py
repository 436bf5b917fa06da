"""The forward pass of the engine: new tokens of many sequences against their cached keys and values.

Law: computes a `StepPlan` exactly; no scheduling, no sampling. Log-probabilities agree with a plain forward
pass up to rounding, because partial attentions are merged by their log-sum-exps:

    out = (e^a o_a + e^b o_b) / (e^a + e^b) = lerp(o_a, o_b, sigmoid(b - a))        a, b: log-sum-exps

Shapes: T tokens of the step, H query heads, K key/value heads, G = H / K, W head width, D width, R rows.
"""
# torch leaves much of what it offers without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from muster.engine.embedded.cores import Cores
from muster.engine.embedded.kv_store import KVStore
from muster.engine.embedded.packed_weights import PackedLayer, PackedWeights
from muster.engine.embedded.step_plan import LongRow, SingleBatch, StepPlan
from muster.model.attention import rope_tables
from muster.model.config import LlamaConfig

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""(q, k, v of (batch, heads, rows, width)) -> (output, log-sum-exp); the public function hides the latter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Single:
    """A `SingleBatch` as tensors, shared by all layers."""

    batch: SingleBatch
    queries_B: Tensor
    gather: Tensor | None
    mask_B11S: Tensor
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A `StepPlan` as tensors. `arrange_T` puts the tail outputs, batch after batch, into token order."""

    plan: StepPlan
    cos_T1W: Tensor
    sin_T1W: Tensor
    slots_T: Tensor
    rows_T: Tensor
    singles: tuple[_Single, ...]
    long_masks: tuple[Tensor, ...]
    arrange_T: Tensor


class Decoder:
    """Forward pass of the model, stateless but for the store it writes keys and values to."""

    def __init__(self, config: LlamaConfig, store: KVStore, dtype: torch.dtype) -> None:
        self._config, self._store, self._dtype = config, store, dtype
        self._group = config.heads // config.kv_heads
        self._cores = Cores(torch.get_num_threads())

    @torch.inference_mode()
    def logits(self, weights: PackedWeights, plan: StepPlan, rows: list[int]) -> Tensor:
        """Feed the step; returns fp32 logits (len(rows), V) at the last token of the chosen rows."""
        self._cores.begin(len(plan.tokens_T))
        step = self._tensors(plan)
        x_TD = F.embedding(torch.from_numpy(plan.tokens_T), weights.embedding_VD)
        for index, layer in enumerate(weights.layers):
            x_TD = self._layer(index, layer, x_TD, step)
        last = torch.from_numpy(plan.last_R[rows])
        x_RD = self._norm(x_TD[last], weights.norm_D)
        self._cores.end()
        return weights.head(x_RD).float()

    @torch.inference_mode()
    def score(self, weights: PackedWeights, tokens_T: Tensor, temperature: float) -> Tensor:
        """fp32 log-probability of each token given those before it (the first is 0), without the cache."""
        cos_T1W, sin_T1W = self._rope(torch.arange(len(tokens_T)))
        x_TD = F.embedding(tokens_T, weights.embedding_VD)
        for layer in weights.layers:
            q, kv = self._qkv(layer, x_TD, cos_T1W, sin_T1W)
            k, v = kv.repeat_interleave(self._group, dim=1).transpose(0, 1).chunk(2)
            out_HTW = _flash(q.flatten(1, 2).transpose(0, 1)[None], k[None], v[None], is_causal=True)[0][0]
            x_TD = self._mlp(layer, x_TD + layer.out(out_HTW.transpose(0, 1).reshape(len(x_TD), -1)))
        x_TD = self._norm(x_TD, weights.norm_D)
        scores_T = torch.zeros(len(tokens_T))
        for start in range(0, len(tokens_T) - 1, 64):
            stop = min(start + 64, len(tokens_T) - 1)
            logits = weights.head(x_TD[start:stop]).float().div_(temperature)
            chosen = logits.gather(1, tokens_T[start + 1 : stop + 1, None])[:, 0]
            scores_T[start + 1 : stop + 1] = chosen - logits.logsumexp(-1)
        return scores_T

    def _layer(self, index: int, layer: PackedLayer, x_TD: Tensor, step: _Step) -> Tensor:
        q_TKGW, kv = self._qkv(layer, x_TD, step.cos_T1W, step.sin_T1W)
        cache_SHCW = self._store.slots_LSHCW[index]
        cache_SHCW[step.slots_T, :, step.rows_T] = kv
        out_TD = self._attend(index, q_TKGW, cache_SHCW, step).flatten(1)
        with self._cores:
            out_TD = layer.out(out_TD)
        return self._mlp(layer, x_TD + out_TD)

    def _qkv(self, layer: PackedLayer, x_TD: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (T, K, G, W), and keys then values (T, 2K, W), rotated."""
        c = self._config
        rotated = c.heads + c.kv_heads
        x_TD = self._norm(x_TD, layer.attention_norm_D)
        with self._cores:
            qkv = layer.qkv(x_TD).view(len(x_TD), -1, c.head_width)
        turned = torch.cat((qkv[:, :rotated, c.head_width // 2 :], qkv[:, :rotated, : c.head_width // 2]), -1)
        qkv[:, :rotated] = torch.addcmul(qkv[:, :rotated] * cos, turned, sin)
        return qkv[:, : c.heads].unflatten(1, (c.kv_heads, self._group)), qkv[:, c.heads :]

    def _mlp(self, layer: PackedLayer, x_TD: Tensor) -> Tensor:
        normed_TD = self._norm(x_TD, layer.mlp_norm_D)
        with self._cores:
            gate, up = layer.gate_up(normed_TD).chunk(2, dim=-1)
        mixed = F.silu(gate).mul_(up)
        with self._cores:
            return x_TD + layer.down(mixed)

    def _norm(self, x_TD: Tensor, weight_D: Tensor) -> Tensor:
        return F.rms_norm(x_TD, weight_D.shape, weight_D, self._config.rms_eps)

    def _attend(self, index: int, q_TKGW: Tensor, cache_SHCW: Tensor, step: _Step) -> Tensor:
        out_TKGW, lse_TKG = self._tails(q_TKGW, cache_SHCW, step)
        for part in step.plan.shared:
            kv = self._store.prefix(part.prefix)[index, :, : part.length]
            own = slice(part.start, part.stop)
            out, lse = self._rows(q_TKGW[own], kv)
            weight = torch.sigmoid(lse - lse_TKG[own])[..., None].to(out.dtype)
            out_TKGW[own].lerp_(out, weight)
        return out_TKGW

    def _tails(self, q_TKGW: Tensor, cache_SHCW: Tensor, step: _Step) -> tuple[Tensor, Tensor]:
        K = self._config.kv_heads
        outs: list[Tensor] = []
        lses: list[Tensor] = []
        for single in step.singles:
            q = q_TKGW.index_select(0, single.queries_B)
            with self._cores:
                if single.gather is None:
                    kv = cache_SHCW[single.batch.first : single.batch.last, :, : single.longest]
                else:
                    kv = cache_SHCW[:, :, : single.longest].index_select(0, single.gather)
                out, lse = _flash(q, kv[:, :K], kv[:, K:], attn_mask=single.mask_B11S)
            outs.append(out)
            lses.append(lse)
        for row, mask in zip(step.plan.longs, step.long_masks, strict=True):
            kv = cache_SHCW[row.slot, :, : row.before + row.stop - row.start]
            out, lse = self._rows(q_TKGW[row.start : row.stop], kv, mask)
            outs.append(out)
            lses.append(lse)
        out = outs[0] if len(outs) == 1 else torch.cat(outs)
        lse = lses[0] if len(lses) == 1 else torch.cat(lses)
        return out.index_select(0, step.arrange_T), lse.index_select(0, step.arrange_T)

    def _rows(self, q_NKGW: Tensor, kv_HSW: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """N tokens against the same S keys: output (N, K, G, W), log-sum-exp (N, K, G)."""
        n, K, G, W = q_NKGW.shape
        q = q_NKGW.transpose(0, 1).reshape(1, K, n * G, W)
        with self._cores:
            out, lse = _flash(q, kv_HSW[None, :K], kv_HSW[None, K:], attn_mask=mask)
        return out.view(K, n, G, W).transpose(0, 1), lse.reshape(K, n, G).transpose(0, 1)

    def _tensors(self, plan: StepPlan) -> _Step:
        cos_T1W, sin_T1W = self._rope(torch.from_numpy(plan.positions_T))
        order = [batch.tokens_B for batch in plan.singles]
        order += [np.arange(row.start, row.stop) for row in plan.longs]
        computed = np.concatenate(order)
        arrange_T = np.empty(len(plan.tokens_T), dtype=np.int64)
        real = np.flatnonzero(computed >= 0)
        arrange_T[computed[real]] = real
        return _Step(
            plan=plan,
            cos_T1W=cos_T1W,
            sin_T1W=sin_T1W,
            slots_T=torch.from_numpy(plan.slots_T),
            rows_T=torch.from_numpy(plan.tail_rows_T),
            singles=tuple(self._single(batch) for batch in plan.singles),
            long_masks=tuple(self._causal(row) for row in plan.longs),
            arrange_T=torch.from_numpy(arrange_T),
        )

    def _single(self, batch: SingleBatch) -> _Single:
        longest = int(batch.lengths_B.max())
        hidden_BS = torch.arange(longest)[None] >= torch.from_numpy(batch.lengths_B)[:, None]
        mask = torch.zeros(hidden_BS.shape, dtype=self._dtype).masked_fill_(hidden_BS, -torch.inf)
        return _Single(
            batch=batch,
            queries_B=torch.from_numpy(np.maximum(batch.tokens_B, 0)),
            gather=None if batch.gather is None else torch.from_numpy(batch.gather),
            mask_B11S=mask[:, None, None],
            longest=longest,
        )

    def _causal(self, row: LongRow) -> Tensor:
        """(1, 1, n * G, before + n): token-major, the G query heads of a token see the same keys."""
        n = row.stop - row.start
        mask = torch.full((n, row.before + n), -torch.inf, dtype=self._dtype).triu_(row.before + 1)
        return mask.repeat_interleave(self._group, dim=0)[None, None]

    def _rope(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin (T, 1, W); sin carries the sign of the half-split rotation."""
        c = self._config
        cos_TW, sin_TW = rope_tables(positions_T, c.head_width, c.rope_theta)
        sin_TW[:, : c.head_width // 2] *= -1
        return cos_TW[:, None].to(self._dtype), sin_TW[:, None].to(self._dtype)
