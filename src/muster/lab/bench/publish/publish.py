"""`muster bench publish`: what new weights cost on their way to an engine: three transports, whole, delta, adapter.

    engine ─ sampled once ─► batches ─► for each arm: its trainer steps, and publishes to its engine under load

Law: every arm publishes the same weights, which is checked: their digests are equal, round by round. An adapter is
another training, and publishes its own. Latency counts from the end of a step to the moment in which the engine serves
its weights; the pause is the part of it in which nothing is decoded. Slow-downs compare the same load with and without
a publication, seconds apart. Trainer and engine share this machine's cores: an export slows decoding here, and on
machines of their own it does not.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np

from muster import clock
from muster.engine.config import EngineConfig
from muster.engine.launching import launch
from muster.errors import UserError
from muster.lab.bench.publish.arm import PublishArm, Published, PublishStage, play, rounds
from muster.lab.bench.publish.batches import prompts_of, sample_batches
from muster.lab.bench.servers import server_config
from muster.lab.result import BenchResult, Target, Value
from muster.model.config import LlamaConfig
from muster.model.weights import parameter_shapes, resolve
from muster.publish.config import CheckpointConfig, DirectConfig, MemoryConfig, PublisherConfig, TransportConfig
from muster.publish.transports import exporter_for
from muster.trainer.config import AdapterConfig, TrainerConfig
from muster.types import Ints

TEMPERATURE = 1.0
STREAMS = 16
QUIET_S = 2.0
MAX_MODEL_LEN = 1024
CAP_BYTES_PER_S = 100e6
ANCHOR_EVERY = 1_000
"""Of so many versions one is whole: here the first, which is not measured."""
ADAPTER = AdapterConfig(rank=16, alpha=32)

DELTA_OF_WHOLE = 0.10
PAUSE_OF_LATENCY = 0.10
CAP_KEPT = 1.1
"""Bytes a second over the cap: the first bytes of a fetch come at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    transport: TransportConfig
    adapter: AdapterConfig | None = None
    capped: bool = False


_WAYS = {
    "memory-whole": _Way(transport=MemoryConfig()),
    "direct-whole": _Way(transport=DirectConfig(), capped=True),
    "direct-delta": _Way(transport=DirectConfig(form="delta", anchor_every=ANCHOR_EVERY)),
    "checkpoint-whole": _Way(transport=CheckpointConfig(), capped=True),
    "checkpoint-delta": _Way(transport=CheckpointConfig(form="delta", anchor_every=ANCHOR_EVERY)),
    "checkpoint-adapter": _Way(transport=CheckpointConfig(), adapter=ADAPTER),
}
ARMS = tuple(_WAYS)


def arm(name: str, directory: Path, dtype: Literal["bfloat16", "float32"]) -> PublishArm:
    """directory: storage of the checkpoint transport, and of shared memory where that has no room."""
    way = _WAYS[name]
    label = f"{directory.name}-{name}"
    return PublishArm(
        name=name,
        exporter=exporter_for(way.transport, run_label=label, directory=directory / name),
        trainer=TrainerConfig(serving_dtype=dtype, adapter=way.adapter),
        capped=way.capped,
    )


def engine_of(kind: str, *, python: str = "") -> EngineConfig:
    """Settings of the engine that is published to; as `servers.server_config`."""
    return server_config(kind, python=python, streams=STREAMS, max_model_len=MAX_MODEL_LEN)


def run_publish_bench(
    say: Callable[[str], object],
    *,
    model: str,
    engine: EngineConfig,
    repeats: int,
    only: Sequence[str] = ARMS,
    streams: int = STREAMS,
    quiet_s: float = QUIET_S,
    cap: float = CAP_BYTES_PER_S,
    prompts: Sequence[Ints] | None = None,
) -> BenchResult:
    """Measure. prompts: of the samples that are trained on; default: small requests in the model's chat template.

    cap: bytes a second. Raises `UserError` for an arm that is not known, `ModelError` for a model that cannot be used.
    """
    for name in only:
        if name not in ARMS:
            raise UserError(f"--arm {name}: it is one of {', '.join(ARMS)}")
    folder = resolve(model)
    asked = list(prompts) if prompts is not None else prompts_of(folder)
    stage = PublishStage(
        model=folder,
        engine=engine,
        streams=streams,
        quiet_s=quiet_s,
        cap=cap,
        repeats=repeats,
        canary=np.concatenate(asked)[: PublisherConfig().canary_tokens],
        temperature=TEMPERATURE,
    )
    found = clock.run(_all(say, stage, asked, only))
    whole_bytes = _whole_bytes(folder, engine.dtype)
    return BenchResult(
        name="publish",
        rows=[row(name, cap, own, whole_bytes) for (name, cap), own in _by_row(found).items()],
        targets=targets(found, whole_bytes),
        notes={
            "model": model,
            "engine": engine.kind,
            "dtype": engine.dtype,
            "whole_bytes": whole_bytes,
            "learning_rate": TrainerConfig().lr,
            "streams": streams,
            "canary_tokens": len(stage.canary),
            "repeats": repeats,
            "cores": os.cpu_count(),
        },
    )


async def _all(
    say: Callable[[str], object], stage: PublishStage, prompts: Sequence[Ints], only: Sequence[str]
) -> list[Published]:
    found: list[Published] = []
    dtype = stage.engine.dtype
    assert dtype != "float16", "trainers export bfloat16 or float32"
    with TemporaryDirectory(prefix="muster-publish-") as directory:
        played = [arm(name, Path(directory), dtype) for name in only]
        count = max(rounds(one, stage.repeats) for one in played)
        async with launch(stage.engine, stage.model, "engine0") as replica:
            batches = await sample_batches(replica, prompts, count=count, temperature=stage.temperature)
        for one in played:
            own = await play(one, stage, batches)
            for p in own:
                r = p.record
                parts = f"export {r.export_s:.2f}, stage {r.stage_s:.2f}, pause {r.pause_s:.3f}"
                say(f"{p.arm} {p.number}: {r.size_bytes / 1e6:.1f} MB, {r.latency_s:.2f} s until it serves ({parts})")
            found += own
    return found


# --- figures ----------------------------------------------------------------------------------------------


def row(name: str, cap: float, own: Sequence[Published], whole_bytes: int) -> dict[str, Value]:
    """Medians over the repeats of one arm. Seconds; MB are millions of bytes."""

    def of(figure: Callable[[Published], float]) -> float:
        return round(median(map(figure, own)), 4)

    return {
        "arm": name,
        "cap MB/s": f"{cap / 1e6:.4g}" if cap else "-",
        "MB": of(lambda p: p.record.size_bytes / 1e6),
        "of whole": of(lambda p: p.record.size_bytes / whole_bytes),
        "export": of(lambda p: p.record.export_s),
        "transfer": of(lambda p: p.record.transfer_s),
        "stage": of(lambda p: p.record.stage_s),
        "commit": of(lambda p: p.record.commit_s),
        "pause": of(lambda p: p.record.pause_s),
        "latency": of(lambda p: p.record.latency_s),
        "pause of latency": of(lambda p: p.pause_share),
        "tokens/s": of(lambda p: p.quiet_per_s),
        "slower exporting": of(lambda p: p.export_slowdown),
        "slower staging": of(lambda p: p.stage_slowdown),
        "canary": of(lambda p: p.record.canary_difference or 0.0),
    }


def targets(found: Sequence[Published], whole_bytes: int) -> list[Target]:
    """Of the arms that were played. A digest is right when engine and exporter agree, and the other arms with them."""
    aims = [Target(name="digest_equal", value=_digests_right(found), operator=">=", threshold=1.0)]
    for name in dict.fromkeys(p.arm for p in found):
        own = [p for p in found if p.arm == name]
        word = name.replace("-", "_")
        if name.endswith("-delta"):
            share = max(p.record.size_bytes for p in own) / whole_bytes
            aims.append(Target(name=f"{word}_bytes_of_whole", value=share, operator="<=", threshold=DELTA_OF_WHOLE))
        share = median(p.pause_share for p in own if not p.cap)
        aims.append(Target(name=f"{word}_pause_of_latency", value=share, operator="<=", threshold=PAUSE_OF_LATENCY))
        if capped := [p for p in own if p.cap]:
            pace = max(p.record.size_bytes / max(p.record.transfer_s, 1e-9) / p.cap for p in capped)
            aims.append(Target(name=f"{word}_pace_of_cap", value=pace, operator="<=", threshold=CAP_KEPT))
    return aims


def _digests_right(found: Sequence[Published]) -> float:
    """Share of publications. The first arm says which weights a round has; an adapter's weights are its own."""
    weights: dict[tuple[bool, int], str] = {}
    right = 0
    for p in found:
        digest = weights.setdefault((p.arm.endswith("-adapter"), p.number), p.record.version.digest)
        right += p.record.digest_equal and p.record.version.digest == digest
    return right / len(found)


def _by_row(found: Sequence[Published]) -> dict[tuple[str, float], list[Published]]:
    rows: dict[tuple[str, float], list[Published]] = {}
    for p in found:
        rows.setdefault((p.arm, p.cap), []).append(p)
    return rows


def _whole_bytes(folder: Path, dtype: str) -> int:
    """Of all weights in the serving precision."""
    width = 4 if dtype == "float32" else 2
    return sum(math.prod(shape) for shape in parameter_shapes(LlamaConfig.from_folder(folder)).values()) * width
