"""Sampling from softmax(logits / T), and its exact log-probability.

Law: the log-probability returned is the one that the token was drawn with, in fp32: the policy is
softmax(logits / T), nothing is truncated. One uniform number decides one token (inverse of the cumulative
distribution), so that a request's own seed makes its choices whatever else is in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROWS = 16
"""Rows per pass: their probabilities stay in the processor's cache."""


@torch.inference_mode()
def sample(logits_BV: Tensor, temperatures_B: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids and log-probabilities, (B,) each. Consumes `logits_BV` (fp32).

    temperatures_B: 0 takes the largest logit, with log-probability 0.
    uniforms_B: in [0, 1).
    """
    tokens_B = torch.empty(len(logits_BV), dtype=torch.int64)
    logprobs_B = torch.empty(len(logits_BV))
    for start in range(0, len(logits_BV), _ROWS):
        rows = slice(start, start + _ROWS)
        tokens_B[rows], logprobs_B[rows] = _sample(logits_BV[rows], temperatures_B[rows], uniforms_B[rows])
    greedy_B = temperatures_B == 0
    if bool(greedy_B.any()):
        tokens_B[greedy_B] = logits_BV[greedy_B].argmax(-1)
        logprobs_B[greedy_B] = 0.0
    return tokens_B, logprobs_B


def _sample(logits_BV: Tensor, temperatures_B: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    scaled_BV = logits_BV / torch.where(temperatures_B == 0, 1.0, temperatures_B)[:, None]
    scaled_BV -= scaled_BV.logsumexp(-1, keepdim=True)
    mass_BV = scaled_BV.exp().cumsum_(-1)
    target_B1 = uniforms_B[:, None] * mass_BV[:, -1:]
    # right: the first entry above the target, which has probability > 0
    chosen_B1 = torch.searchsorted(mass_BV, target_B1, right=True).clamp_(max=logits_BV.shape[1] - 1)
    return chosen_B1[:, 0], scaled_BV.gather(1, chosen_B1)[:, 0]
