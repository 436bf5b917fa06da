"""Log-probabilities of given tokens by the model that serves, with its own kernels, also while it is paused.

    tokens ─► the model's forward, on scratch blocks for keys and values ─► logits / temperature ─► log-softmax

Law: no request, no scheduler, no block of the cache is touched: vLLM's own prompt log-probabilities are before
temperature, and a paused server makes none.
"""
# vllm is not installed where types are checked
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from vllm.config import set_current_vllm_config
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

_LOGIT_ROWS = 256
"""Positions whose logits are in memory at once."""


def score(runner: Any, tokens: list[int], temperature: float) -> list[float]:
    """As `engine.port.Scores.logprobs_T`. runner: the worker's model runner."""
    count = len(tokens)
    ids_T = torch.tensor(tokens, dtype=torch.int64, device=runner.device)
    positions_T = torch.arange(count, device=runner.device)
    with torch.inference_mode(), set_current_vllm_config(runner.vllm_config), _scratch_cache(runner, count):
        hidden_TD = _hidden(runner, ids_T, positions_T)
        logprobs_T = [0.0]
        for start in range(0, count - 1, _LOGIT_ROWS):
            stop = min(start + _LOGIT_ROWS, count - 1)
            logits_TV = runner.model.compute_logits(hidden_TD[start:stop]).float() / temperature
            chosen = ids_T[start + 1 : stop + 1, None]
            logprobs_T += logits_TV.log_softmax(-1).gather(1, chosen)[:, 0].tolist()
    return logprobs_T


def _hidden(runner: Any, ids_T: Tensor, positions_T: Tensor) -> Tensor:
    count = len(ids_T)
    metadata: dict[str, Any] = {}
    slots: dict[str, Tensor] = {}
    for gid, groups in enumerate(runner.attn_groups):
        block = runner.kv_cache_config.kv_cache_groups[gid].kv_cache_spec.block_size
        common = _one_sequence(count, block, positions_T)
        for group in groups:
            made = group.build_metadata(common)
            metadata |= dict.fromkeys(group.layer_names, made)
            slots |= dict.fromkeys(group.layer_names, common.slot_mapping)
    with set_forward_context(metadata, runner.vllm_config, num_tokens=count, slot_mapping=slots):
        return runner.model(input_ids=ids_T, positions=positions_T, intermediate_tensors=None, inputs_embeds=None)


def _one_sequence(count: int, block: int, positions_T: Tensor) -> CommonAttentionMetadata:
    """A single prompt of `count` tokens in blocks 1, 2, …; block 0 is vLLM's for padding."""
    device = positions_T.device
    blocks = torch.arange(1, -(-count // block) + 1, dtype=torch.int32, device=device)
    bounds = torch.tensor([0, count], dtype=torch.int32)
    lengths = torch.tensor([count], dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=bounds.to(device),
        query_start_loc_cpu=bounds,
        seq_lens=lengths.to(device),
        seq_lens_cpu_upper_bound=lengths,
        num_reqs=1,
        num_actual_tokens=count,
        max_query_len=count,
        max_seq_len=count,
        block_table_tensor=blocks[None],
        slot_mapping=positions_T + block,
        causal=True,
        positions=positions_T,
        is_prefilling=torch.tensor([True]),
    )


@contextmanager
def _scratch_cache(runner: Any, count: int) -> Generator[None]:
    """Other blocks in every attention layer, for as long as the body runs."""
    layers = runner.compilation_config.static_forward_context
    kept: dict[str, Tensor] = {}
    try:
        for group in runner.kv_cache_config.kv_cache_groups:
            needed = -(-count // group.kv_cache_spec.block_size) + 1
            for name in group.layer_names:
                kept[name] = layers[name].kv_cache
                layers[name].kv_cache = _fewer_blocks(kept[name], runner.kv_cache_config.num_blocks, needed)
        yield
    finally:
        for name, cache in kept.items():
            layers[name].kv_cache = cache


def _fewer_blocks(cache: Tensor, blocks: int, needed: int) -> Tensor:
    """Zeros laid out as `cache`, with `needed` blocks in place of `blocks`."""
    axis = cache.shape.index(blocks)
    order = sorted(range(cache.dim()), key=lambda d: (-cache.stride(d), d))
    shape = [needed if d == axis else cache.shape[d] for d in order]
    inverse = [order.index(d) for d in range(cache.dim())]
    return cache.new_zeros(shape).permute(inverse)
