"""`muster bench ttb --real`: both arms in wall time on this machine, and what the simulation said beforehand.

    ttb.toml ─ baseline, all parts ─► scaled ─► for each run, on a batch of its own, each arm:
        probe ─► Constants ─► predict      virtual clock
                              collect      wall clock ─► TTB, by cause, beside its prediction

Law: both arms play the same programs, and a trajectory counts as played only when its verifier found the trace of every
command. The prediction is made before the run that it is held against, from constants measured on another batch.
"""

from __future__ import annotations

import os
import platform
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from pydantic import ConfigDict, Field, ValidationError

from muster import clock
from muster.errors import ConfigError
from muster.journal import Journal
from muster.lab.bench.ttb.arms import ALL, BASELINE
from muster.lab.bench.ttb.declaration import Declaration
from muster.lab.bench.ttb.real.constants import Constants, measure_constants, predict
from muster.lab.bench.ttb.real.run import RealSetup, collect_real
from muster.lab.bench.ttb.real.scale import Scale, scaled_groups, scaled_world
from muster.lab.bench.ttb.real.words import Groups
from muster.lab.bench.ttb.virtual import CAUSES, CUT
from muster.lab.collection.collection import CollectionWorld, numbered
from muster.lab.collection.workload import programs
from muster.lab.result import BenchResult, Target, Value
from muster.observe.critical_path import BatchTime, batch_time
from muster.observe.record import read
from muster.types import Stage

BUILT_IN = Path(__file__).with_name("ttb_real.toml")
PREDICTION_ERROR = 0.15

Say = Callable[[str], None]


class RealConfig(Scale):
    """Configuration of what is lived for real, and how small. The built-in one is `ttb_real.toml`, with its reasons."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fleet: str = Field(description="of the declaration")
    processes: int = Field(ge=1, description="that serve the replicas")
    runs: int = Field(ge=1, description="of each arm, in turn; each pair has a batch of its own")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRun:
    """One arm in one run, in our seconds. `wrong`: attempts that did not end as their program says."""

    ttb_s: float
    predicted_s: float
    parts: Mapping[Stage, float]
    hit_rate: float
    predicted_hit_rate: float
    cpu_share: float
    control_share: float
    wrong: int

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured; below 0: it took longer than predicted."""
        return self.predicted_s / self.ttb_s - 1

    def __str__(self) -> str:
        return f"{self.ttb_s:.1f} s, predicted {self.predicted_s:.1f} s; cores busy {self.cpu_share:.0%}"


Runs = Mapping[str, Sequence[ArmRun]]
"""By arm, one for each seed."""


def read_config(path: Path = BUILT_IN) -> RealConfig:
    """Raises `ConfigError` naming file and key."""
    try:
        return RealConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def run_real(declared: Declaration, config: RealConfig, *, say: Say = lambda line: None) -> BenchResult:
    """Takes minutes, and wants the machine for itself. An interrupt leaves nothing behind.

    Raises `ConfigError` for a declaration that cannot be, `SandboxStartError` where no sandbox starts.

    Example: `run_real(ttb_declaration.read(), read_config(), say=print).table()`
    """
    began = clock.now()
    runs: dict[str, list[ArmRun]] = {BASELINE: [], ALL: []}
    constants: dict[str, list[Constants]] = {BASELINE: [], ALL: []}
    with tempfile.TemporaryDirectory(prefix="muster-ttb-") as root:
        place = RealSetup(root=Path(root), processes=config.processes)
        for seed in range(config.runs):
            for arm, world, groups in _pair(declared, config, seed):
                constants[arm].append(measure_constants(world, groups, seed, place))
                runs[arm].append(lived := live(world, groups, seed, constants[arm][-1], place))
                say(f"run {seed + 1} of {config.runs}, {arm}: {lived}")
    return BenchResult(
        name="ttb-real",
        rows=[row(arm, lived, config.time) for arm, lived in runs.items()],
        targets=targets(runs),
        notes={
            "config": config.model_dump(),
            "constants": {arm: [asdict(c) for c in measured] for arm, measured in constants.items()},
            "runs": {arm: [_note(x) for x in lived] for arm, lived in runs.items()},
            "docker_start_s": _docker(say),
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "wall_s": clock.now() - began,
        },
    )


def _pair(declared: Declaration, config: RealConfig, seed: int) -> list[tuple[str, CollectionWorld, Groups]]:
    """One batch, and the two arms that live it: name, world, programs; all in our seconds and tokens."""
    worlds = {BASELINE: declared.world(config.fleet), ALL: declared.world(config.fleet, parts=tuple(declared.parts))}
    groups = scaled_groups(programs(worlds[ALL].workload, seed), config)
    return [(arm, scaled_world(world, config, groups), groups) for arm, world in worlds.items()]


def live(world: CollectionWorld, groups: Groups, seed: int, constants: Constants, place: RealSetup) -> ArmRun:
    """Predict, then collect. The world's seconds are real ones."""
    predicted = predict(world, groups, seed, constants)
    real = collect_real(world, groups, seed, place)
    try:
        time = batch_of(real.journal)
        return ArmRun(
            ttb_s=time.ttb_s,
            predicted_s=batch_of(predicted.journal).ttb_s,
            parts=time.parts,
            hit_rate=real.hit_rate,
            predicted_hit_rate=predicted.hit_rate,
            cpu_share=real.cpu_share,
            control_share=real.control_share,
            wrong=wrong(real.journal, groups),
        )
    finally:
        predicted.journal.close()
        real.journal.close()


def batch_of(journal: Journal) -> BatchTime:
    """The time of the one batch, by cause."""
    record = read(journal)
    (batch,) = record.batches
    return batch_time(batch, record.groups.values(), record.launches, record.trajectories.values(), record.spans)


def wrong(journal: Journal, groups: Groups) -> int:
    """Planned attempts without exactly one trajectory that has its program's reward and its program's tokens."""
    ended: dict[tuple[str, int], list[tuple[float | None, int]]] = {}
    for row in read(journal).trajectories.values():
        ended.setdefault((row.task_id, row.sibling), []).append((row.reward, row.sampled_tokens))
    planned = {
        (numbered(group).id, sibling): [(program.reward, program.sampled_tokens)]
        for group, siblings in enumerate(groups)
        for sibling, program in enumerate(siblings)
    }
    return sum(ended.get(key) != value for key, value in planned.items()) + len(ended.keys() - planned.keys())


def row(arm: str, lived: Sequence[ArmRun], time: float) -> dict[str, Value]:
    """Medians over the runs, in our seconds; `declared_s` is what the declared world would take."""
    values: dict[str, Value] = {
        "arm": arm,
        "runs": len(lived),
        "ttb_s": median(x.ttb_s for x in lived),
        "least_s": min(x.ttb_s for x in lived),
        "most_s": max(x.ttb_s for x in lived),
        "predicted_s": median(x.predicted_s for x in lived),
        "error": median(abs(x.error) for x in lived),
        "worst_error": max(abs(x.error) for x in lived),
        "declared_s": median(x.ttb_s for x in lived) * time,
    }
    for name, stages in CAUSES.items():
        values[f"{name}_s"] = median(sum(x.parts.get(s, 0.0) for s in stages) for x in lived)
    return values | {
        "hit_rate": median(x.hit_rate for x in lived),
        "predicted_hits": median(x.predicted_hit_rate for x in lived),
        "cpu_share": median(x.cpu_share for x in lived),
        "control_share": median(x.control_share for x in lived),
        "wrong": sum(x.wrong for x in lived),
    }


def targets(runs: Runs) -> list[Target]:
    """Targets that were written down before."""
    pairs = zip(runs[ALL], runs[BASELINE], strict=True)
    cut = median(1 - ours.ttb_s / base.ttb_s for ours, base in pairs)
    found = [Target(name="real_ttb_cut", value=cut, operator=">=", threshold=CUT)]
    for arm, lived in runs.items():
        error = median(abs(x.error) for x in lived)
        found.append(Target(name=f"prediction_error_{arm}", value=error, operator="<=", threshold=PREDICTION_ERROR))
    wrongs = sum(x.wrong for lived in runs.values() for x in lived)
    return [*found, Target(name="wrong_outcomes", value=wrongs, operator="<=", threshold=0)]


def _note(lived: ArmRun) -> dict[str, object]:
    return {**asdict(lived), "parts": {str(stage): seconds for stage, seconds in lived.parts.items()}}


def _docker(say: Say) -> float | None:
    """A container's start on this machine; None where none can be had."""
    if find_spec("docker") is None:
        say("a container's start here is not measured: it needs the docker SDK, pip install 'muster-rl[docker]'")
        return None
    from muster.lab.bench.ttb.real.docker import Unavailable, docker_start_s  # an extra: the benchmark runs without

    try:
        seconds = docker_start_s()
    except Unavailable as reason:
        say(f"a container's start here is not measured: {reason}")
        return None
    say(f"a container's start here, unscaled, its image at hand: {seconds:.2f} s")
    return seconds
