"""The policy is softmax(logits / T), and the log-probability is that of the token drawn."""

from __future__ import annotations

import numpy as np
import torch

from muster.engine.embedded.sampling import sample


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    temperature = 0.7
    draws = 4000
    uniforms = torch.from_numpy(np.random.default_rng(0).random(draws, dtype=np.float32))
    tokens, logprobs = sample(logits.repeat(draws, 1), torch.full((draws,), temperature), uniforms)
    expected = (logits[0] / temperature).log_softmax(-1)
    torch.testing.assert_close(logprobs, expected[tokens])
    frequency = torch.bincount(tokens, minlength=4) / draws
    torch.testing.assert_close(frequency, expected.exp(), atol=0.02, rtol=0)


def test_the_whole_range_of_uniforms_gives_possible_tokens() -> None:
    logits = torch.full((3, 1000), -torch.inf)
    logits[:, 500] = 0.0
    tokens, logprobs = sample(logits, torch.ones(3), torch.tensor([0.0, 0.5, 1 - 2**-24]))
    assert tokens.tolist() == [500] * 3
    assert logprobs.tolist() == [0.0] * 3


def test_temperature_zero_takes_the_largest() -> None:
    tokens, logprobs = sample(torch.tensor([[1.0, 3.0, 2.0]] * 2), torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0]))
    assert tokens.tolist() == [1, 0]
    assert logprobs[0] == 0.0


def test_a_row_draws_the_same_whatever_else_is_in_the_batch() -> None:
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(0))
    uniforms = torch.rand(40, generator=torch.Generator().manual_seed(1))
    together, _ = sample(logits.clone(), torch.ones(40), uniforms)
    alone = [sample(logits[i : i + 1].clone(), torch.ones(1), uniforms[i : i + 1])[0].item() for i in range(40)]
    assert together.tolist() == alone
