"""Watchers between the orchestrator and the world's parts, so that each hand-over is held against the laws."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muster.engine.port import Engine, EngineStatistics, Scores
from muster.errors import EngineError, TrainerError
from muster.journal import Journal
from muster.lab.fakes.trainer import FakeTrainer
from muster.lab.world.chaos import ATTEMPT, Chaos, Fault
from muster.lab.world.laws import Laws
from muster.orchestrator.dispatch import Attempts
from muster.orchestrator.keeps import Keeps
from muster.rollout.spans import SpanRecorder
from muster.sandbox.port import SandboxBackend
from muster.trainer.port import Divergence, StepResult
from muster.types import (
    Batch,
    Completion,
    Floats,
    Ints,
    Kept,
    Launch,
    Publication,
    ReadyGroup,
    Sampling,
    Session,
    Trajectory,
)


class WatchedAttempts:
    """Implements `orchestrator.dispatch.Attempts`."""

    def __init__(self, inner: Attempts, laws: Laws) -> None:
        self._inner = inner
        self._laws = laws

    async def run(self, launch: Launch, spans: SpanRecorder, seed: int | None = None) -> Trajectory:
        ATTEMPT.set(launch.id)
        self._laws.started(launch)
        try:
            trajectory = await self._inner.run(launch, spans, seed)
        finally:
            self._laws.gone(launch)
        self._laws.ended(launch, trajectory)
        return trajectory


class WatchedEngine:
    """Implements `engine.port.Engine`. Notes which attempts it failed, whatever it tried before."""

    def __init__(self, inner: Engine, chaos: Chaos) -> None:
        self._inner = inner
        self._chaos = chaos

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        try:
            return await self._inner.generate(tokens, sampling, session)
        except EngineError:
            self._chaos.mark_faulted(session.id)
            raise

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        return await self._inner.score(tokens, temperature=temperature)

    async def statistics(self) -> EngineStatistics:
        return await self._inner.statistics()


class WatchedKeeps(Keeps):
    """Keep points, and what each of them was when it was committed."""

    def __init__(self, journal: Journal, backend: SandboxBackend, every_s: float, laws: Laws) -> None:
        super().__init__(journal, backend, every_s)
        self._laws = laws

    async def commit(self, launch: Launch, kept: Kept) -> None:
        self._laws.kept(kept)
        await super().commit(launch, kept)


class WatchedTrainer:
    """Implements `trainer.port.Trainer`. `forgets`: it restores nothing, a broken law for tests."""

    def __init__(self, inner: FakeTrainer, laws: Laws, chaos: Chaos, *, forgets: bool = False) -> None:
        self._inner = inner
        self._laws = laws
        self._chaos = chaos
        self._forgets = forgets

    async def step(self, batch: Batch) -> StepResult:
        self._laws.batch(batch)
        if self._chaos.happens(Fault.TRAINER_FAILURE):
            raise TrainerError(f"injected at step {batch.step}")
        return await self._inner.step(batch)

    async def measure(self, groups: Sequence[ReadyGroup]) -> dict[str, Divergence]:
        return await self._inner.measure(groups)

    async def export(self, number: int) -> Publication:
        publication = await self._inner.export(number)
        self._laws.published(publication.version)
        return publication

    async def score(self, sequences: Sequence[Ints], *, temperature: float) -> list[Floats]:
        return await self._inner.score(sequences, temperature=temperature)

    async def save(self, directory: Path) -> None:
        await self._inner.save(directory)

    async def restore(self, directory: Path) -> None:
        if not self._forgets:
            await self._inner.restore(directory)

    async def close(self) -> None:
        await self._inner.close()
