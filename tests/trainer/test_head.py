from __future__ import annotations

import pytest
import torch

from muster.trainer.head import LogProbabilities

T = 0.7


def plain(hidden, weight, row, word):
    return torch.log_softmax(hidden @ weight.t() / T, -1)[row, word]


def example(scale, dtype):
    """300 rows with words drawn from their policy; some rows have several words, one pair comes twice."""
    generator = torch.Generator().manual_seed(0)
    hidden = (scale * torch.randn(300, 16, generator=generator)).to(dtype)
    weight = torch.randn(50, 16, generator=generator).to(dtype)
    row = torch.cat((torch.arange(300), torch.tensor([3, 3, 299]))).long()
    policy = torch.softmax(hidden.float() @ weight.float().t() / T, -1)
    word = torch.multinomial(policy[row], 1, generator=generator)[:, 0]
    word[300] = word[3]
    coefficients = torch.randn(303, generator=generator)
    return hidden, weight, row, word, coefficients


def gradients(function, hidden, weight, row, word, coefficients):
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    found = function(hidden, weight, row, word)
    found.backward(coefficients)
    return found.detach(), hidden.grad, weight.grad


def test_values_and_gradients_equal_the_formula_in_fp32():
    example_ = example(1.0, torch.float32)
    found = gradients(lambda *a: LogProbabilities.apply(*a, T), *example_)
    expected = gradients(plain, *example_)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 3.0], ids=["spread", "confident"])
def test_bf16_products_keep_the_digits_of_what_was_sampled(scale):
    hidden, weight, row, word, _ = example(scale, torch.bfloat16)
    found = LogProbabilities.apply(hidden, weight, row, word, T)
    exact = plain(hidden.float(), weight.float(), row, word)
    rounded_logits = torch.log_softmax((hidden @ weight.t()).float() / T, -1)[row, word]
    assert (found - exact).abs().mean() < 0.5 * (rounded_logits - exact).abs().mean()


def test_the_gradient_survives_at_a_word_that_the_policy_is_sure_of():
    # softmax = 0.999 there: in bf16, 1 - softmax would be 0 or off by a factor
    weight = torch.eye(16, dtype=torch.bfloat16)
    hidden = torch.zeros(1, 16, dtype=torch.bfloat16)
    hidden[0, 3] = 6.75
    one = torch.ones(1)
    at, word = torch.tensor([0]), torch.tensor([3])
    _, found, _ = gradients(lambda *a: LogProbabilities.apply(*a, T), hidden, weight, at, word, one)
    _, exact, _ = gradients(plain, hidden.float(), weight.float(), at, word, one)
    assert exact[0, 3] < 2e-3
    torch.testing.assert_close(found[0, 3].float(), exact[0, 3], rtol=0.05, atol=0)


def test_an_impossible_word_has_a_finite_log_probability():
    weight = torch.eye(2)
    hidden = torch.tensor([[500.0, -500.0]])
    found = LogProbabilities.apply(hidden, weight, torch.tensor([0]), torch.tensor([1]), T)
    assert torch.isfinite(found).all() and found <= -80
