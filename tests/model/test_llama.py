"""The packed forward pass equals the plain one, and transformers'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import tiny_llama as tiny
from muster.model.attention import Block, block_mask
from muster.model.config import LlamaConfig
from muster.model.llama import Llama

VARIANTS = {
    "tied": tiny.CONFIG,
    "untied": replace(tiny.CONFIG, tied_embeddings=False),
    "qwen2": replace(tiny.CONFIG, model_type="qwen2", qkv_bias=True, rope_theta=1e6),
}


def build(config: LlamaConfig = tiny.CONFIG, *, checkpointing: bool = False) -> Llama:
    return Llama.from_state(config, tiny.random_state(0, config), checkpointing=checkpointing)


def ids(length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, tiny.CONFIG.vocab_size, (length,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_logits_equal_those_of_transformers(tmp_path: Path, variant: str) -> None:
    config = VARIANTS[variant]
    folder = tiny.write_model(tmp_path / "model", config=config)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model, tokens = build(config), ids(30)
    with torch.no_grad():
        ours = model.logits(model.hidden(tokens, torch.arange(30)))
        torch.testing.assert_close(ours, reference(tokens[None]).logits[0], atol=1e-4, rtol=1e-4)


def test_siblings_packed_behind_one_prompt_see_what_they_would_see_alone() -> None:
    model = build()
    prompt, first, second = ids(9), ids(5, 1), ids(7, 2)
    row = torch.cat((prompt, first, second))
    positions = torch.cat((torch.arange(14), torch.arange(9, 16)))
    blocks = [
        Block(start=0, stop=9),
        Block(start=9, stop=14, context=((0, 9),)),
        Block(start=14, stop=21, context=((0, 9),)),
    ]
    with torch.no_grad():
        packed = model.hidden(row, positions, blocks)
        for rows, member in ((slice(9, 14), first), (slice(14, 21), second)):
            alone = model.hidden(torch.cat((prompt, member)), torch.arange(9 + len(member)))
            torch.testing.assert_close(packed[rows], alone[9:], atol=1e-5, rtol=1e-5)


def test_a_dense_mask_and_blocks_agree() -> None:
    model, tokens, positions = build(), ids(12), torch.arange(12)
    boolean = block_mask(0, 12)
    additive = torch.zeros(12, 12).masked_fill_(~boolean, -torch.inf)
    with torch.no_grad():
        causal = model.hidden(tokens, positions)
        for mask in (boolean, additive, [Block(start=0, stop=4), Block(start=4, stop=12, context=((0, 4),))]):
            torch.testing.assert_close(model.hidden(tokens, positions, mask), causal, atol=1e-5, rtol=1e-5)


def test_checkpointing_changes_no_gradient() -> None:
    gradients = []
    for checkpointing in (False, True):
        model = build(checkpointing=checkpointing)
        model.logits(model.hidden(ids(10), torch.arange(10))).logsumexp(-1).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() == dict(build().named_parameters()).keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name])


def test_under_autocast_the_residual_stream_stays_fp32() -> None:
    model = build()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        hidden = model.hidden(ids(8), torch.arange(8))
        assert hidden.dtype == torch.float32
        assert model.logits(hidden).dtype == torch.bfloat16


def test_parameters_carry_the_names_of_the_checkpoint() -> None:
    for config in VARIANTS.values():
        assert build(config).state_dict().keys() == tiny.random_state(0, config).keys()
