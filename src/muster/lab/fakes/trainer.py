"""A trainer on the virtual clock, for the simulator and for tests.

Law: only the arithmetic is fake. It takes time, counts updates, refuses what the real one refuses, and its weights are
a number: the digest of all updates so far. The same batches in the same order give the same digests.

    step(batch) ─ step_s + token_s x tokens ─► weights' = hash(weights, rewards)     (same weights without gradient)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from muster import clock
from muster.errors import ModelError, TrainerError
from muster.trainer.config import AdvantageConfig
from muster.trainer.objective.advantage import batch_advantages
from muster.trainer.port import Divergence, StepResult
from muster.types import Batch, Floats, Ints, Publication, ReadyGroup, Trajectory, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeTrainerConfig:
    """Durations of the fake trainer, the drift of its policy, and the batch that breaks it."""

    step_s: float = 5.0
    token_s: float = 0.0  # per sampled token
    export_s: float = 0.2
    score_s: float = 0.05
    measure_s: float = 1.0
    checkpoint_s: float = 0.5
    size_bytes: int = 270_000_000
    drift_m2: float = 1e-4  # mean squared log-ratio between consecutive versions
    samples_drift: bool = True  # whether it measures that after a step
    fails_at: int | None = None  # batch step that raises


class FakeTrainer:
    """Implements `trainer.port.Trainer`. Calls are answered one after the other, as the real one's process does."""

    def __init__(
        self,
        config: FakeTrainerConfig | None = None,
        advantage: AdvantageConfig | None = None,
        *,
        memory: dict[Path, str] | None = None,
    ) -> None:
        """memory: holds the checkpoints, by directory, in the place of files."""
        self._config = config or FakeTrainerConfig()
        self._advantage = advantage or AdvantageConfig()
        self._weights = hashlib.sha256(b"initial").hexdigest()
        self._version = 0
        self._updates = 0
        self._memory = memory
        self._busy_until = 0.0
        self._closed = False
        self.batches: list[Batch] = []

    async def step(self, batch: Batch) -> StepResult:
        config = self._config
        tokens = sum(member.sampled_tokens for group in batch.groups for member in group.members)
        began = clock.now()
        await self._spend(config.step_s + config.token_s * tokens)
        if batch.step == config.fails_at:
            raise TrainerError(f"injected fault at step {batch.step}")
        advantages = batch_advantages(batch, self._advantage)
        self.batches.append(batch)
        moves = any(advantages.values())
        if moves:
            told = json.dumps([self._weights, sorted(advantages.items())])
            self._weights = hashlib.sha256(told.encode()).hexdigest()
            self._updates += 1
        members = [m for group in batch.groups for m in group.members if advantages[m.id] != 0]
        divergence = {member.id: self._divergence(member).k3 for member in members}
        return StepResult(
            step=batch.step,
            duration_s=clock.now() - began,
            metrics=self._metrics(divergence, tokens, moves=moves),
            divergence=divergence,
        )

    async def measure(self, groups: Sequence[ReadyGroup]) -> dict[str, Divergence]:
        await self._spend(self._config.measure_s)
        members = [member for group in groups for member in group.members if member.sampled_tokens]
        return {member.id: self._divergence(member) for member in members}

    async def export(self, number: int) -> Publication:
        await self._spend(self._config.export_s)
        self._version = number
        return Publication(
            version=Version(number=number, digest=self._weights),
            transport="memory",
            location=f"fake://{number}",
            size_bytes=self._config.size_bytes,
            dtype="bfloat16",
        )

    async def score(self, sequences: Sequence[Ints], *, temperature: float) -> list[Floats]:
        """A log-probability that depends on the weights and on the past, and on nothing else."""
        await self._spend(self._config.score_s)
        return [_pretend(tokens, self._weights, temperature) for tokens in sequences]

    async def save(self, directory: Path) -> None:
        await self._spend(self._config.checkpoint_s)
        state = json.dumps([self._weights, self._version, self._updates])
        if self._memory is not None:
            self._memory[directory] = state
            return
        directory.mkdir(parents=True, exist_ok=True)
        part = directory / "fake.json.part"
        part.write_text(state)
        part.rename(directory / "fake.json")

    async def restore(self, directory: Path) -> None:
        await self._spend(self._config.checkpoint_s)
        try:
            state = (directory / "fake.json").read_text() if self._memory is None else self._memory[directory]
        except (FileNotFoundError, KeyError):
            raise ModelError(f"{directory}: not a checkpoint of a trainer") from None
        self._weights, self._version, self._updates = json.loads(state)

    async def close(self) -> None:
        self._closed = True

    async def _spend(self, duration_s: float) -> None:
        """Wait for one's turn, then for as long as it takes. A cancelled caller's work is done all the same."""
        if self._closed:
            raise TrainerError("the trainer was closed")
        self._busy_until = max(self._busy_until, clock.now()) + duration_s
        await clock.sleep(self._busy_until - clock.now())

    def _divergence(self, member: Trajectory) -> Divergence:
        """Every step moves the same way, so root-mean-square log-ratios add up; k3 is about half of their square."""
        versions = [segment.versions_T[segment.sampled_T] for segment in member.segments]
        lags_N = self._version - np.concatenate(versions) if versions else np.zeros(1)
        m2 = self._config.drift_m2 * float(np.mean(np.maximum(lags_N, 0) ** 2))
        return Divergence(k3=m2 / 2, rms=m2**0.5)

    def _metrics(self, divergence: dict[str, float], tokens: int, *, moves: bool) -> dict[str, float]:
        drift_m2 = self._config.drift_m2 if moves else 0.0
        drift = {"drift_m2": drift_m2, "drift_k3": drift_m2 / 2}
        k3 = float(np.mean(list(divergence.values()))) if divergence else 0.0
        return {
            "loss": 0.0,
            "grad_norm": 1.0 if moves else 0.0,
            "lr": 1e-5,
            "k1": k3,
            "k3": k3,
            "m2": 2 * k3,
            "ess": 1.0,
            "clip_fraction": 0.0,
            "dropped_fraction": 0.0,
            "mean_abs_logprob_difference": (2 * k3) ** 0.5,
            "trained_tokens": float(tokens if moves else 0),
            "forward_tokens": float(tokens),
            "forward_s": self._config.step_s / 3,
            "optimizer_s": 0.0,
            "updates": float(moves),
            **(drift if self._config.samples_drift or not moves else {}),
        }


def _pretend(tokens: Ints, weights: str, temperature: float) -> Floats:
    logprobs_T = np.zeros(len(tokens), dtype=np.float32)
    state = hashlib.sha256(f"{weights}|{temperature}".encode())
    for index, token in enumerate(tokens):
        state.update(int(token).to_bytes(4, "little", signed=True))
        if index:
            logprobs_T[index] = -5.0 * int.from_bytes(state.copy().digest()[:4], "little") / 2**32
    return logprobs_T
