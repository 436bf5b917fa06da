"""A model small enough to train in milliseconds, and batches for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from muster.model.config import LlamaConfig
from muster.model.weights import parameter_shapes, save
from muster.types import Batch, Cause, Graded, Ints, ReadyGroup, Segment, Trajectory, Verdict

TINY = LlamaConfig(vocab_size=64, width=32, mlp_width=48, layers=2, heads=4, kv_heads=2, head_width=8, context=256)


def tiny_state(config: LlamaConfig = TINY, seed: int = 0) -> dict[str, Tensor]:
    """Random weights, large enough that attention is far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.ones(shape) + 0.1 * torch.randn(shape, generator=generator)
        if len(shape) == 1
        else 0.25 * torch.randn(shape, generator=generator)
        for name, shape in parameter_shapes(config).items()
    }


def write_tiny(folder: Path, config: LlamaConfig = TINY, seed: int = 0) -> Path:
    save(folder, config, tiny_state(config, seed))
    return folder


def segment(
    tokens: Sequence[int] | Ints,
    sampled: Sequence[bool] | Sequence[int],
    *,
    logprobs: Sequence[float] | None = None,
    version: int = 0,
) -> Segment:
    sampled_T = np.asarray(sampled, dtype=np.bool_)
    behaviour = np.full(len(sampled_T), -2.0) if logprobs is None else np.asarray(logprobs)
    return Segment(
        tokens_T=np.asarray(tokens, dtype=np.int32),
        sampled_T=sampled_T,
        logprobs_T=np.where(sampled_T, behaviour, 0.0).astype(np.float32),
        versions_T=np.where(sampled_T, version, -1).astype(np.int32),
    )


def trajectory(id: str, segments: Sequence[Segment], reward: float) -> Trajectory:
    verdict = Verdict.SUCCESS if reward > 0 else Verdict.FAILURE
    cause = Cause.VERIFIER_PASSED if reward > 0 else Cause.VERIFIER_FAILED
    return Trajectory(
        id=id,
        group_id=id.split(".")[0],
        task_id="task",
        attempt=0,
        segments=tuple(segments),
        turns=(),
        spans=(),
        outcome=Graded(verdict=verdict, reward=reward, cause=cause),
        started=0.0,
        ended=1.0,
    )


def batch(groups: Sequence[Sequence[Trajectory]], step: int = 0) -> Batch:
    ready = tuple(
        ReadyGroup(id=f"g{i}", task_id="task", submission=i, members=tuple(members), ready_at=1.0)
        for i, members in enumerate(groups)
    )
    return Batch(step=step, groups=ready, opened_at=0.0, ready_at=1.0)


def random_batch(
    seed: int = 0,
    *,
    groups: int = 2,
    rewards: Sequence[float] = (1.0, 0.0, 0.0, 1.0),
    prompt: int = 9,
    sampled: int = 5,
    step: int = 0,
) -> Batch:
    """Groups of siblings: one prompt, then two sampled turns around an observation, of varying length."""
    rng = np.random.default_rng(seed)
    made: list[list[Trajectory]] = []
    for group in range(groups):
        shared = rng.integers(0, TINY.vocab_size, prompt)
        members: list[Trajectory] = []
        for index, reward in enumerate(rewards):
            first, seen, second = rng.integers(1, sampled + 1, 3)
            mask = [0] * prompt + [1] * first + [0] * seen + [1] * second
            own = rng.integers(0, TINY.vocab_size, len(mask) - prompt)
            members.append(trajectory(f"g{group}.{index}", [segment(np.concatenate((shared, own)), mask)], reward))
        made.append(members)
    return batch(made, step)
