"""Batches for real optimiser steps: what the engine sampled, with its own log-probabilities.

    prompts ─► engine, GROUP_SIZE siblings each ─► segments ─► every other one succeeded ─► Batch

Law: sampled once, trained by every trainer of the run, so that all of them reach the same weights. Rewards are made up,
because no sandbox runs here: the gradient is of this policy on its own tokens, and which of them were rewarded does not
matter to how many weights move. After AdamW's first step nearly each master weight has moved by the learning rate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from muster.engine.port import Engine
from muster.model.tokenizer import tokenizer_from
from muster.types import (
    Batch,
    Cause,
    Completion,
    Graded,
    Ints,
    ReadyGroup,
    Sampling,
    Segment,
    Session,
    Trajectory,
    Verdict,
)

GROUP_SIZE = 4
REPLY_TOKENS = 48
_REQUESTS = (
    "Write the word ready into the file state.txt.",
    "How many lines has notes.txt? Write the number into count.txt.",
    "Move every .log file into the directory old.",
    "Sort names.txt and keep the first three lines in top.txt.",
)


def prompts_of(model: Path) -> list[Ints]:
    """Small requests in the model's own chat template."""
    tokenizer = tokenizer_from(model)
    texts = [tokenizer.render([{"role": "user", "content": request}], True) for request in _REQUESTS]
    return [np.array(tokenizer.encode(text), np.int32) for text in texts]


async def sample_batches(engine: Engine, prompts: Sequence[Ints], *, count: int, temperature: float) -> list[Batch]:
    """`count` batches of one group for each prompt, sampled by the version that serves."""
    return [await _batch(engine, prompts, index, temperature) for index in range(count)]


async def _batch(engine: Engine, prompts: Sequence[Ints], index: int, temperature: float) -> Batch:
    groups = await asyncio.gather(
        *(_group(engine, prompt, f"b{index}g{order}", order, temperature) for order, prompt in enumerate(prompts))
    )
    return Batch(step=index, groups=tuple(groups), opened_at=0.0, ready_at=0.0)


async def _group(engine: Engine, prompt: Ints, name: str, order: int, temperature: float) -> ReadyGroup:
    def sampling(sibling: int) -> Sampling:
        return Sampling(temperature=temperature, max_tokens=REPLY_TOKENS, seed=sibling)

    names = [f"{name}.{sibling}" for sibling in range(GROUP_SIZE)]
    replies = await asyncio.gather(
        *(engine.generate(prompt, sampling(i), Session(id=own, group=name)) for i, own in enumerate(names))
    )
    members = [_member(own, name, prompt, reply, i) for i, (own, reply) in enumerate(zip(names, replies, strict=True))]
    return ReadyGroup(id=name, task_id=f"task{order}", submission=order, members=tuple(members), ready_at=0.0)


def _member(name: str, group: str, prompt: Ints, reply: Completion, sibling: int) -> Trajectory:
    solved = sibling % 2 == 0
    nothing = np.zeros(len(prompt), np.float32)
    segment = Segment(
        tokens_T=np.concatenate([prompt, reply.tokens_T]),
        sampled_T=np.arange(len(prompt) + len(reply.tokens_T)) >= len(prompt),
        logprobs_T=np.concatenate([nothing, reply.logprobs_T]),
        versions_T=np.concatenate([np.full(len(prompt), -1, np.int32), reply.versions_T]),
    )
    outcome = Graded(
        verdict=Verdict.SUCCESS if solved else Verdict.FAILURE,
        reward=float(solved),
        cause=Cause.VERIFIER_PASSED if solved else Cause.VERIFIER_FAILED,
    )
    return Trajectory(
        id=name,
        group_id=group,
        task_id=group,
        attempt=0,
        segments=(segment,),
        turns=(),
        spans=(),
        outcome=outcome,
        started=0.0,
        ended=0.0,
    )
