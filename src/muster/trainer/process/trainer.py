"""The trainer behind its port, in a process of its own: the control plane never waits for a matrix product.

Law: no torch on this side. The process starts with the first call and dies with this one; an error of the start is
the error of every call.

    step(batch) ─► [start: Link, setup] ─► Link.call ─► muster.trainer.process.worker ─► LocalTrainer.step
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from muster import clock
from muster.errors import TrainerError
from muster.trainer.config import TrainerConfig
from muster.trainer.port import Divergence, Exporter, StepResult
from muster.trainer.process.link import Link, open_link
from muster.trainer.process.messages import TrainerSetup
from muster.types import Batch, Floats, Ints, Publication, ReadyGroup

_START_TIMEOUT_S = 120.0


class ProcessTrainer:
    """Implements `trainer.port.Trainer`.

    Example:
        async with ProcessTrainer(config, model="starter", temperature=0.7, exporter=exporter) as trainer:
            result = await trainer.step(batch)
    """

    def __init__(self, config: TrainerConfig, *, model: str, temperature: float, exporter: Exporter) -> None:
        """model: a folder, a .gguf file or a packaged name. temperature: of the policy that samples."""
        self._setup = TrainerSetup(config=config, model=model, temperature=temperature, exporter=exporter)
        self._link: asyncio.Task[Link] | None = None  # started by the first call
        self._closed = False

    async def start(self) -> None:
        """Start the process and load the model now. Raises `ModelError` for a bad model, else `TrainerError`."""
        await self._started()

    async def step(self, batch: Batch) -> StepResult:
        return await self._call("step", batch)

    async def measure(self, groups: Sequence[ReadyGroup]) -> Mapping[str, Divergence]:
        return await self._call("measure", list(groups))

    async def export(self, number: int) -> Publication:
        return await self._call("export", number)

    async def score(self, sequences: Sequence[Ints], *, temperature: float, serving: bool = False) -> list[Floats]:
        """`serving`: in the precision of the engines instead of training's."""
        return await self._call("score", list(sequences), temperature=temperature, serving=serving)

    async def save(self, directory: Path) -> None:
        await self._call("save", directory)

    async def restore(self, directory: Path) -> None:
        await self._call("restore", directory)

    async def close(self) -> None:
        """End the process; pending calls fail. Idempotent."""
        self._closed = True
        if self._link is None:
            return
        try:
            link = await asyncio.shield(self._link)
        except (TrainerError, ValueError):
            return  # it never started, and whoever called was told
        await link.close()

    async def __aenter__(self) -> ProcessTrainer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        link = await self._started()
        return await link.call(method, arguments, keywords)

    async def _started(self) -> Link:
        if self._closed:
            raise TrainerError("the trainer was closed")
        if self._link is None:
            self._link = asyncio.create_task(_open(self._setup))
        return await asyncio.shield(self._link)  # a cancelled caller does not cancel the start for others


async def _open(setup: TrainerSetup) -> Link:
    link = await open_link(setup.config.threads)
    try:
        async with clock.timeout(_START_TIMEOUT_S):
            await link.call("setup", setup, {})
    except TimeoutError as error:
        await link.close()
        raise TrainerError(f"the trainer did not start within {_START_TIMEOUT_S:g} s") from error
    except BaseException:
        await link.close()
        raise
    return link
