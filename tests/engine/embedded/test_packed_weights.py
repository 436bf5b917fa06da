"""The digest is of what is multiplied."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny_llama as tiny
from muster.engine.embedded import packed_weights
from muster.model import weights
from muster.model.config import LlamaConfig

VARIANTS = [
    tiny.CONFIG,
    replace(tiny.CONFIG, tied_embeddings=False),
    replace(tiny.CONFIG, model_type="qwen2", qkv_bias=True),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", VARIANTS)
def test_fusing_and_packing_keep_the_digest(config: LlamaConfig, dtype: torch.dtype) -> None:
    state = {name: tensor.to(dtype) for name, tensor in tiny.random_state(0, config).items()}
    assert packed_weights.pack(config, state, dtype).digest == weights.digest(state)


def test_a_tied_head_that_was_left_behind_changes_the_digest() -> None:
    state = {name: tensor.bfloat16() for name, tensor in tiny.random_state(0).items()}
    held = packed_weights.pack(tiny.CONFIG, state, torch.bfloat16)
    old = packed_weights.Linear(state["model.embed_tokens.weight"] * 2)
    assert packed_weights.digest(held) == held.digest == weights.digest(state)
    assert packed_weights.digest(replace(held, head=old)) != held.digest


def test_packed_and_plain_products_agree() -> None:
    weight, x = torch.randn(96, 64).bfloat16(), torch.randn(5, 64).bfloat16()
    linear = packed_weights.Linear(weight, torch.randn(96).bfloat16())
    plain = torch.nn.functional.linear(x, weight, linear.bias_O)
    torch.testing.assert_close(linear(x), plain, atol=0.25, rtol=0.02)
    torch.testing.assert_close(linear.rows(), weight)
