"""The trainer, in this process: a batch in, one step done, weights out.

Law: decisions about a token's gradient are pure and live elsewhere (`advantage`, `packing`, `policy`); this file puts
them in order around the weights and keeps count of versions.

    groups ─► log pi of every segment ─► Divergence        kept for the step, until the weights move
    Batch ─advantage─► items ─TrainStep─► StepResult            version: of the weights before the step
    weights ─serving dtype─► digest ─► exporter ─► Publication

`ProcessTrainer` runs it behind the asynchronous port.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from muster import clock
from muster.model.weights import digest
from muster.trainer import checkpoint
from muster.trainer.config import TrainerConfig
from muster.trainer.learner import Learner
from muster.trainer.measured import MeasuredScores, divergences
from muster.trainer.objective.advantage import batch_advantages
from muster.trainer.packing import Item, plan, sequences
from muster.trainer.port import Divergence, Exporter, StepResult
from muster.trainer.step import TrainStep, scatter
from muster.types import Batch, Floats, Ints, Publication, ReadyGroup, Segment

_BITS = {torch.bfloat16: torch.uint16}
"""numpy has no bfloat16: it travels as its bits."""


class LocalTrainer:
    """Synchronous core behind the `Trainer` port.

    Example: `LocalTrainer(TrainerConfig(), model=folder, temperature=0.7, exporter=exporter).step(batch)`
    """

    def __init__(self, config: TrainerConfig, *, model: Path, temperature: float, exporter: Exporter) -> None:
        """model: a Hugging Face folder; its weights are version 0. temperature: of the policy that samples."""
        self.learner = Learner(config, model)
        self._model = model
        self.version = 0  # of the weights last published; a token of this version is fresh until the next step
        self._stepped = False  # the weights have moved since they were published
        self._config = config
        self._temperature = temperature
        self._exporter = exporter
        self._rng = np.random.default_rng(config.seed)
        self._measured = MeasuredScores()  # under the present weights

    def step(self, batch: Batch) -> StepResult:
        """Raises `TrainerError` when a gradient is not finite; weights and optimiser are then as before it."""
        started = clock.now()
        members = [member for group in batch.groups for member in group.members]
        items = sequences(batch.groups, batch_advantages(batch, self._config.advantage))
        known = self._measured.known(items, members)
        self._measured.forget()
        step = TrainStep(self.learner, items, known, version=self._current_version, temperature=self._temperature)
        step.run(self._rng)
        metrics = step.metrics()
        self._stepped = self._stepped or metrics["updates"] > 0
        return StepResult(
            step=batch.step,
            duration_s=clock.now() - started,
            metrics=metrics,
            divergence={members[index].id: k3 for index, k3 in step.tally.divergence().items()},
        )

    @torch.no_grad()
    def measure(self, groups: Sequence[ReadyGroup]) -> dict[str, Divergence]:
        """Exact divergence of every member that sampled a token. What it scores is kept for the step to come."""
        members = [member for group in groups for member in group.members]
        items = sequences(groups, dict.fromkeys((member.id for member in members), 0.0))
        scores = self._measured.known(items, members)
        missing = [item for item in items if item.segment not in scores]
        table = [np.zeros(len(item.data), dtype=np.float32) for item in items]
        for row in plan(missing, self._config.max_tokens_per_row):
            logprobs_N = self.learner.logprobs(self.learner.compute, row, self._temperature)
            scatter(table, row, logprobs_N.numpy(force=True))
        scores |= {item.segment: table[item.segment] for item in missing}
        self._measured.keep(missing, members, scores)
        return divergences(items, members, scores)

    def export(self, number: int) -> Publication:
        """Publish the present weights as version `number`, in the serving dtype."""
        state = {name: view.to("cpu", copy=True) for name, view in self.learner.served().weights().items()}
        dtype, version = self._config.serving_dtype, digest(state)
        masters, adapter = self.learner.masters, self._config.adapter
        if adapter is not None and adapter.publish == "adapter":
            low_rank = {name: master.numpy(force=True).copy() for name, master in masters.trained.items()}
            publication = self._exporter.export(
                low_rank, number=number, digest=version, dtype=dtype, adapter=masters.adapter
            )
        else:
            bits = {name: tensor.view(_BITS.get(tensor.dtype, tensor.dtype)).numpy() for name, tensor in state.items()}
            publication = self._exporter.export(bits, number=number, digest=version, dtype=dtype)
        self.version, self._stepped = number, False
        return publication

    @torch.no_grad()
    def score(self, sequences: Sequence[Ints], *, temperature: float, serving: bool = False) -> list[Floats]:
        """Log-probability of each token given those before it, 0 for the first.

        In the precision of training, or with `serving` in that of the engines. What sequences share is computed once.
        """
        learner = self.learner
        compute = learner.served() if serving else learner.compute
        scores = [np.zeros(len(tokens), dtype=np.float32) for tokens in sequences]
        items = [_to_score(index, tokens) for index, tokens in enumerate(sequences) if len(tokens) > 1]
        for row in plan(items, self._config.max_tokens_per_row):
            scatter(scores, row, learner.logprobs(compute, row, temperature).numpy(force=True))
        return scores

    def save(self, directory: Path) -> None:
        """Checkpoint, whole or not at all; replaces an older one at `directory`."""
        learner = self.learner
        counters = checkpoint.CheckpointState(
            updates=learner.updates,
            version=self.version,
            stepped=self._stepped,
            random=dict(self._rng.bit_generator.state),
            fingerprint=self._config.model_dump(mode="json"),
            base=learner.masters.adapter.base if learner.masters.adapter else None,
        )
        checkpoint.save(directory, self._model, learner, counters)

    def restore(self, directory: Path) -> None:
        """Raises `ModelError` when `directory` holds no checkpoint of this model."""
        learner = self.learner
        counters = checkpoint.restore(directory, learner)
        learner.updates = counters.updates
        learner.compute.refresh()
        self._measured.forget()
        self.version, self._stepped = counters.version, counters.stepped
        self._rng.bit_generator.state = counters.random

    @property
    def _current_version(self) -> int:
        """The version whose tokens come from exactly these weights; one that nobody sampled if they have moved."""
        return self.version + 1 if self._stepped else self.version


def _to_score(index: int, tokens: Ints) -> Item:
    """A sequence of which every token but the first is asked for."""
    asked_T = np.arange(len(tokens)) > 0
    data = Segment(
        tokens_T=np.asarray(tokens, dtype=np.int32),
        sampled_T=asked_T,
        logprobs_T=np.zeros(len(tokens), dtype=np.float32),
        versions_T=np.where(asked_T, 0, -1).astype(np.int32),
    )
    return Item(trajectory=index, segment=index, ordinal=0, group=0, advantage=0.0, data=data)
