"""Batch of the tiny model's trainer: what it holds and says of one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.model.weights import digest
from muster.trainer.local import LocalTrainer
from muster.types import Batch

T = 0.8
"""Temperature of the policy, in all of these tests."""


def weights(trainer: LocalTrainer) -> str:
    return digest(trainer.learner.masters.trained)


def tokens_of(made: Batch) -> list[np.ndarray]:
    return [s.tokens_T for g in made.groups for m in g.members for s in m.segments]


def on_policy(made: Batch, trainer: LocalTrainer) -> Batch:
    """The same batch, with behaviour log-probabilities that are the trainer's own."""
    scores = iter(trainer.score(tokens_of(made), temperature=T))

    def again(member):
        segments = tuple(
            replace(s, logprobs_T=np.where(s.sampled_T, next(scores), 0).astype(np.float32)) for s in member.segments
        )
        return replace(member, segments=segments)

    groups = tuple(replace(g, members=tuple(again(m) for m in g.members)) for g in made.groups)
    return replace(made, groups=groups)


def sampled_logprobs(trainer: LocalTrainer, made: Batch) -> dict[str, float]:
    """Sum over each trajectory's sampled tokens."""
    members = [m for g in made.groups for m in g.members]
    scores = iter(trainer.score(tokens_of(made), temperature=T))
    return {m.id: float(sum(next(scores)[s.sampled_T].sum() for s in m.segments)) for m in members}
