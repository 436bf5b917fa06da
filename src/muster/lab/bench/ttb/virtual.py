"""`muster bench ttb --virtual`: one batch of 256 trajectories, collected by what is common and by Muster.

    ttb.toml ─► arms ─┬─ seed 0 ─► simulate, measure ─┐
                      ├─ seed 1 ─►       …            ├─► medians, paired by seed ─► tables, targets, JSON, figure
                      └─ …        two processes       ┘

Law: the arms of a seed play the same programs, so they are compared seed by seed. Nothing is left out that was
simulated, and a target that is missed is printed as missed.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from muster import clock
from muster.lab.bench.ttb.arms import ALL, BASELINE, MAIN, Arm, arms
from muster.lab.bench.ttb.declaration import BUILT_IN, read
from muster.lab.bench.ttb.measure import Measured, measure
from muster.lab.collection.collection import CollectionWorld
from muster.lab.result import BenchResult, Target, Value
from muster.lab.workers import workers
from muster.types import Stage

CUT = 0.669
"""The headline to beat: 66.9 % less collection time for one 256-trajectory batch at fixed weights (Nebius)."""
SCORES = {"path": 1.20, "slots": 1.20, "engine": 1.40}
"""T over bound, by the fleet whose name says what is short."""
FAULTS = {"2 % faults": 1.25, "10 % faults": 1.60}
LENGTH = 0.02

CAUSES: Mapping[str, tuple[Stage, ...]] = {
    "admission": (Stage.ADMISSION,),
    "sandbox": (Stage.SANDBOX_QUEUE, Stage.SANDBOX_START),
    "engine_queue": (Stage.ENGINE_QUEUE,),
    "prefill": (Stage.PREFILL,),
    "recompute": (Stage.RECOMPUTE,),
    "decode": (Stage.DECODE,),
    "tool": (Stage.TOOL,),
    "verify": (Stage.VERIFIER_QUEUE, Stage.VERIFY),
    "retry": (Stage.INFRA_RETRY, Stage.REFILL),
    "other": (Stage.PUBLICATION_PAUSE, Stage.ASSEMBLY),
}
"""Columns of the decomposition."""

Runs = Mapping[str, Sequence[Measured]]
"""By arm, one for each seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Job of a worker process."""

    key: str
    world: CollectionWorld
    seed: int

    def run(self) -> tuple[str, Measured]:
        return self.key, measure(self.world, self.seed)


def run_ttb(
    *, repetitions: int, declaration: Path = BUILT_IN, jobs: int = 0, say: Callable[[str], None] = lambda line: None
) -> BenchResult:
    """Every arm with `repetitions` seeds. jobs: processes; 0 for one on each core.

    Raises `ConfigError` for a declaration that cannot be.
    """
    chosen = arms(read(declaration))
    began = clock.now()
    runs = gathered([Job(key=a.key, world=a.world, seed=s) for s in range(repetitions) for a in chosen], jobs, say)
    return BenchResult(
        name="ttb",
        rows=[row(arm, runs) for arm in chosen],
        targets=targets(runs),
        notes={
            "repetitions": repetitions,
            "declaration": declaration.read_text(encoding="utf-8"),
            "wall_s": clock.now() - began,
            "inclusion": {a.key: _inclusion(runs[a.key]) for a in chosen},
        },
    )


def gathered(todo: Sequence[Job], jobs: int, say: Callable[[str], None]) -> dict[str, list[Measured]]:
    """The results by key, in the order of the jobs, whichever ends first."""
    runs: dict[str, list[Measured]] = {}
    began = clock.now()
    for number, (key, measured) in enumerate(_results(todo, jobs or os.cpu_count() or 1), start=1):
        runs.setdefault(key, []).append(measured)
        if number % max(1, len(todo) // 10) == 0:
            say(f"{number} of {len(todo)} collections, {clock.now() - began:.0f} s")
    return runs


def row(arm: Arm, runs: Runs) -> dict[str, Value]:
    """Medians over the seeds; `cut` is paired with the baseline of the same fleet, seed by seed."""
    own = runs[arm.key]
    values: dict[str, Value] = {
        "kind": arm.kind,
        "fleet": arm.fleet,
        "arm": arm.name,
        "ttb_p50_s": _median(own, lambda m: m.ttb_s),
        "ttb_p90_s": float(np.quantile([m.ttb_s for m in own], 0.9)),
        "cut": cut(runs, arm.key, f"{arm.fleet}/{BASELINE}"),
        "score": _median(own, lambda m: m.score),
        "bound": max((m.bound for m in own), key=[m.bound for m in own].count),
    }
    for name, stages in CAUSES.items():
        values[f"{name}_s"] = _median(own, lambda m, stages=stages: sum(m.parts[s] for s in stages))
    return values | {
        "env_wait": _median(own, lambda m: m.env_wait),
        "hit_rate": _median(own, lambda m: m.hit_rate),
        "prefill_ratio": _median(own, lambda m: m.computed_tokens / m.needed_tokens),
        "wasted_tokens": _median(own, lambda m: m.wasted_tokens / m.sampled_tokens),
        "wasted_slot_s": _median(own, lambda m: m.wasted_slot_s / m.batches),
        "length_ratio": _median(own, lambda m: m.length_ratio),
        "p90_ratio": _median(own, lambda m: m.p90_ratio),
        "longest_tenth": _median(own, lambda m: m.inclusion[-1]),
        "preemptions": _median(own, lambda m: m.preemptions),
        "refills": _median(own, lambda m: m.refills),
    }


def targets(runs: Runs) -> list[Target]:
    """Targets that were written down before."""
    ours = f"{MAIN}/{ALL}"
    lengths = [m.length_ratio for m in runs[ours]]
    found = [
        Target(name="ttb_cut", value=cut(runs, ours, f"{MAIN}/{BASELINE}"), operator=">=", threshold=CUT),
        Target(name="length_ratio_low", value=min(lengths), operator=">=", threshold=1 - LENGTH),
        Target(name="length_ratio_high", value=max(lengths), operator="<=", threshold=1 + LENGTH),
    ]
    for fleet, threshold in SCORES.items():
        if own := runs.get(f"{fleet}/{ALL}"):
            score = _median(own, lambda m: m.score)
            found.append(Target(name=f"score_{fleet}", value=score, operator="<=", threshold=threshold))
    for name, threshold in FAULTS.items():
        if f"{MAIN}/{name}" in runs:
            ratio = 1 - cut(runs, f"{MAIN}/{name}", ours)
            label = name.replace(" % ", "_percent_")
            found.append(Target(name=f"ttb_with_{label}", value=ratio, operator="<=", threshold=threshold))
    return found


def cut(runs: Runs, arm: str, against: str) -> float:
    """Median over the seeds of 1 - TTB / TTB of `against`."""
    return median(1 - a.ttb_s / b.ttb_s for a, b in zip(runs[arm], runs[against], strict=True))


def _median(own: Sequence[Measured], value: Callable[[Measured], float]) -> float:
    return float(median(value(m) for m in own))


def _inclusion(own: Sequence[Measured]) -> list[float]:
    return [float(x) for x in np.median([m.inclusion for m in own], axis=0)]


def _results(todo: Sequence[Job], jobs: int) -> Iterator[tuple[str, Measured]]:
    if jobs == 1 or len(todo) == 1:
        yield from map(Job.run, todo)
        return
    with workers(jobs, _begin_worker) as pool:
        yield from pool.map(Job.run, todo, chunksize=1)


def _begin_worker() -> None:
    """A world is many short-lived objects in few cycles: collect rarely."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
