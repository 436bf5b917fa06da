"""One way of publishing, played for some rounds: a trainer, an engine, and what every publication cost.

    each round: step ─► load ─ quiet ─ export ─ stage ─ pause ─ quiet ─ end      tokens a second in each part
    first round: nothing runs, nothing is measured: it is the whole version that a chain of deltas begins with

Law: trainer, engine and publisher are those of a run, in processes of their own, and a publication counts only when the
digest is right. The quiet parts lie just before and after what they are compared with, under the same load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from muster import clock
from muster.engine.config import EngineConfig
from muster.engine.launching import launch
from muster.engine.port import Replica
from muster.lab.bench.publish.load import TokenMeter, under_load
from muster.publish.config import PublisherConfig
from muster.publish.publisher import Canary, Publisher
from muster.publish.transports import Exporter
from muster.trainer.config import TrainerConfig
from muster.trainer.process.trainer import ProcessTrainer
from muster.types import Batch, Ints, PublicationRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishArm:
    """A transport and a form. capped: whether it is played with a bandwidth cap as well, after as many rounds without;
    what fetches nothing has none.
    """

    name: str
    exporter: Exporter
    trainer: TrainerConfig
    capped: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishStage:
    """Stage that all arms share. cap: bytes a second. quiet_s: load without a publication, before and after each."""

    model: Path
    engine: EngineConfig
    streams: int
    quiet_s: float
    cap: float
    repeats: int
    canary: Ints
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One publication under load. The `*_per_s` are tokens a second of the running requests in that part.

    cap: bytes a second; 0: none.
    """

    arm: str
    number: int
    cap: float
    record: PublicationRecord
    quiet_per_s: float
    exporting_per_s: float
    staging_per_s: float

    @property
    def export_slowdown(self) -> float:
        """Share of the decode speed that was lost meanwhile."""
        return 1 - self.exporting_per_s / self.quiet_per_s

    @property
    def stage_slowdown(self) -> float:
        return 1 - self.staging_per_s / self.quiet_per_s

    @property
    def pause_share(self) -> float:
        """Of the latency: what serving stands still for."""
        return self.record.pause_s / self.record.latency_s


def rounds(arm: PublishArm, repeats: int) -> int:
    """Steps that an arm takes: one to begin with, then `repeats` for each cap."""
    return 1 + repeats * (2 if arm.capped else 1)


async def play(arm: PublishArm, stage: PublishStage, batches: Sequence[Batch]) -> list[Published]:
    """Publish after each batch. Raises `PublicationError` when one does not arrive as it left."""
    trainer = ProcessTrainer(arm.trainer, model=str(stage.model), temperature=stage.temperature, exporter=arm.exporter)
    measured: list[Published] = []
    try:
        async with trainer, launch(stage.engine, stage.model, "engine0") as replica:
            act = _Act(arm=arm, stage=stage, trainer=trainer, replica=replica)
            for number, batch in enumerate(batches[: rounds(arm, stage.repeats)], 1):
                await trainer.step(batch)
                if number == 1:
                    await act.publish(number, cap=0)
                else:
                    measured.append(await act.measured(number, cap=stage.cap if number > 1 + stage.repeats else 0))
    finally:
        arm.exporter.clear()
    return measured


def published(
    arm: str, number: int, cap: float, record: PublicationRecord, meter: TokenMeter, began: float, quiet_s: float
) -> Published:
    """began: the start of the export. What came after it follows from the record."""
    serving = began + record.latency_s
    paused = serving - record.pause_s
    staging = paused - record.stage_s
    quiet_per_s = (meter.rate(began - quiet_s, began) + meter.rate(serving, serving + quiet_s)) / 2
    return Published(
        arm=arm,
        number=number,
        cap=cap,
        record=record,
        quiet_per_s=quiet_per_s,
        exporting_per_s=meter.rate(began, began + record.export_s),
        staging_per_s=meter.rate(staging, paused),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Act:
    arm: PublishArm
    stage: PublishStage
    trainer: ProcessTrainer
    replica: Replica

    async def measured(self, number: int, *, cap: float) -> Published:
        stage = self.stage
        length = stage.engine.max_model_len
        async with under_load(self.replica, streams=stage.streams, max_model_len=length) as meter:
            await clock.sleep(stage.quiet_s)
            began = clock.now()
            record = await self.publish(number, cap=cap)
            await clock.sleep(stage.quiet_s)
        return published(self.arm.name, number, cap, record, meter, began, stage.quiet_s)

    async def publish(self, number: int, *, cap: float) -> PublicationRecord:
        """As a run delivers: export, canary, publish."""
        stage = self.stage
        began = clock.now()
        publication = await self.trainer.export(number)
        export_s = clock.now() - began
        (logprobs_T,) = await self.trainer.score([stage.canary], temperature=stage.temperature)
        canary = Canary(tokens=stage.canary, temperature=stage.temperature, logprobs_T=logprobs_T)
        publisher = Publisher([self.replica], PublisherConfig())
        (record,) = await publisher.publish(
            replace(publication, max_bytes_per_s=cap or None), canary, trained_at=began, export_s=export_s
        )
        return record
