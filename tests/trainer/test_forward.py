"""The packed forward and backward pass is the plain one, token by token and gradient by gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from muster.model.llama import Llama
from muster.trainer.forward import hidden, logprobs, row_tensors
from muster.trainer.kernels import RMSNormFunction, SwiGLU
from muster.trainer.masters import Masters
from muster.trainer.packing import plan, sequences
from muster.trainer.tree_attention import parts
from muster.trainer.weights import Compute
from trainer.test_packing import groups_of_segments
from trainer.tiny import TINY, random_batch, tiny_state

T = 0.7


def masters(config=TINY):
    return {name: tensor.requires_grad_() for name, tensor in tiny_state(config).items()}


def plain(model, data):
    """Log-probabilities of a segment's sampled tokens, one sequence at a time, by the reference model."""
    tokens_T = torch.from_numpy(data.tokens_T).long()
    logits_TV = model.logits(model.hidden(tokens_T, torch.arange(len(tokens_T)))).float()
    logprobs_TV = torch.log_softmax(logits_TV / T, -1)
    sampled = np.flatnonzero(data.sampled_T)
    return logprobs_TV[torch.from_numpy(sampled - 1), tokens_T[torch.from_numpy(sampled)]]


@pytest.mark.parametrize(
    "config",
    [TINY, replace(TINY, tied_embeddings=False), replace(TINY, qkv_bias=True, model_type="qwen2")],
    ids=["tied", "untied", "biased"],
)
@given(items=groups_of_segments())
@settings(max_examples=15, deadline=None)
def test_packed_log_probabilities_and_gradients_equal_unpacked_ones(config, items):
    weights = masters(config)
    compute = Compute(config, Masters(trained=weights), torch.float32)
    reference = Llama.from_state(config, {k: v.detach().clone() for k, v in weights.items()})
    for row in plan(items, 40):
        tensors = row_tensors(row, config, compute.embed)
        found_N = logprobs(compute, hidden(compute, tensors), tensors, T)
        coefficients_N = torch.from_numpy(np.cos(np.arange(len(row.targets_N), dtype=np.float32)))
        found_N.backward(coefficients_N)
        compute.flush()
        for index in np.unique(row.segment_N):
            expected = plain(reference, items[index].data)
            here = torch.from_numpy(row.segment_N == index)
            torch.testing.assert_close(found_N.detach()[here], expected.detach(), rtol=1e-4, atol=1e-4)
            expected.backward(coefficients_N[here])
    largest = max(float(parameter.grad.abs().max()) for parameter in reference.parameters())
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(weights[name].grad, parameter.grad, rtol=1e-3, atol=1e-5 * largest)


@given(items=groups_of_segments())
@settings(max_examples=5, deadline=None)
def test_checkpointing_changes_memory_not_gradients(items):
    (row, *_) = plan(items, 100)
    gradients = []
    for checkpointing in (False, True):
        weights = masters()
        compute = Compute(TINY, Masters(trained=weights), torch.float32)
        tensors = row_tensors(row, TINY, compute.embed)
        logprobs(compute, hidden(compute, tensors, checkpointing=checkpointing), tensors, T).sum().backward()
        compute.flush()
        gradients.append(weights["model.layers.0.mlp.down_proj.weight"].grad)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_bf16_gradients_point_where_fp32_gradients_point():
    made = random_batch(groups=2, rewards=[1.0, 0.0] * 4, prompt=20, sampled=8)
    items = sequences(made.groups, {m.id: 1.0 for g in made.groups for m in g.members})
    gradients = {}
    for dtype in (torch.float32, torch.bfloat16):
        weights = masters()
        compute = Compute(TINY, Masters(trained=weights), dtype)
        for row in plan(items, 200):
            tensors = row_tensors(row, TINY, compute.embed)
            logprobs(compute, hidden(compute, tensors), tensors, T).sum().backward()
            compute.flush()
        gradients[dtype] = torch.cat([weights[name].grad.flatten() for name in sorted(weights)])
    exact, rounded = gradients[torch.float32], gradients[torch.bfloat16]
    assert torch.nn.functional.cosine_similarity(exact, rounded, dim=0) > 0.97
    assert abs(float(rounded.norm() / exact.norm()) - 1) < 0.05


def test_norm_and_gate_have_the_gradients_of_their_formulas():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 12, generator=generator, requires_grad=True)
    weight = torch.randn(12, generator=generator, requires_grad=True)
    upstream = torch.randn(7, 12, generator=generator)
    fused = RMSNormFunction.apply(x, weight, 1e-5)
    formula = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight
    torch.testing.assert_close(fused, formula)
    for one, two in zip(
        torch.autograd.grad(fused, (x, weight), upstream), torch.autograd.grad(formula, (x, weight), upstream),
        strict=True,
    ):  # fmt: skip
        torch.testing.assert_close(one, two)
    gate, up = x.chunk(2, dim=-1)
    (one,) = torch.autograd.grad(SwiGLU.apply(x), x, upstream[:, :6])
    (two,) = torch.autograd.grad(torch.nn.functional.silu(gate) * up, x, upstream[:, :6])
    torch.testing.assert_close(one, two)


def test_a_long_trunk_is_handled_in_chunks():
    (row, *_) = plan(_long_items(), 4096)
    gradients = []
    for queries in (1 << 30, 7):
        weights = masters()
        compute = Compute(TINY, Masters(trained=weights), torch.float32)
        chunked = parts(row, compute.embed, TINY.heads // TINY.kv_heads, queries)
        tensors = replace(row_tensors(row, TINY, compute.embed), parts=chunked)
        logprobs(compute, hidden(compute, tensors), tensors, T).sum().backward()
        compute.flush()
        gradients.append(weights["model.layers.0.self_attn.k_proj.weight"].grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


def _long_items():
    made = random_batch(groups=1, prompt=60, sampled=6)
    return sequences(made.groups, {m.id: 1.0 for g in made.groups for m in g.members})
