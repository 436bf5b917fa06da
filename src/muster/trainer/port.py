"""The trainer port: a batch in, new weights out.

    groups ─measure─► Divergence of each member      (may decide that some are replaced before the step)
    Batch ─step─► StepResult ─export─► Publication ─► publisher

The trainer computes advantages from graded members alone, and measures divergence from its own forward pass. What was
measured is not computed again by a step from the same weights that needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from muster.transport.adapter import Adapter
from muster.types import Batch, Floats, Ints, Publication, ReadyGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Divergence of the trainer's policy from the one that sampled a trajectory: exact, on its own sampled tokens.

    Means per token, so that a long trajectory is not over a limit for being long: `k3` estimates the KL in nats;
    `rms` is the root-mean-square log-ratio, the unit of the drift odometer.

    Example: `(await trainer.measure(batch.groups))["g000012.3"].k3`
    """

    k3: float
    rms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of one optimiser step.

    `metrics` holds plain floats: loss, grad_norm, lr, k1, k3, m2, ess, clip_fraction, dropped_fraction,
    mean_abs_logprob_difference, trained_tokens, forward_tokens, forward_s, optimizer_s, updates; and drift_m2 and
    drift_k3, how far the step moved the policy, unless it did and no sample was scored to tell.
    `divergence` maps trajectory id to its mean k3 against the weights before this step.
    """

    step: int
    duration_s: float
    metrics: Mapping[str, float]
    divergence: Mapping[str, float] = field(default_factory=dict[str, float])


class Exporter(Protocol):
    """Exporter of trained weights: a transport of `muster.publish`. It travels to the trainer's process, pickled."""

    def export(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        *,
        number: int,
        digest: str,
        dtype: str,
        adapter: Adapter | None = None,
    ) -> Publication:
        """Write whole or not at all. `arrays` is in the serving dtype; bfloat16 comes as its bits, in uint16.

        With `adapter` the arrays are its low-rank matrices, fp32; digest and dtype are those of the merged weights.
        """
        ...


class Trainer(Protocol):
    """Port of the trainer. Errors: `TrainerError` with its cause; it stops the run."""

    async def step(self, batch: Batch) -> StepResult: ...

    async def measure(self, groups: Sequence[ReadyGroup]) -> Mapping[str, Divergence]:
        """Of every member that sampled a token, by trajectory id, from a forward pass of the present weights."""
        ...

    async def export(self, number: int) -> Publication:
        """Write the current weights, in the serving dtype, where `transport` finds them; whole or not at all."""
        ...

    async def score(self, sequences: Sequence[Ints], *, temperature: float) -> list[Floats]:
        """Log-probabilities as `engine.port.Scores`, from the trainer's forward pass (canary and numerics)."""
        ...

    async def save(self, directory: Path) -> None:
        """Checkpoint master weights, optimiser and random state, atomically."""
        ...

    async def restore(self, directory: Path) -> None: ...

    async def close(self) -> None: ...
