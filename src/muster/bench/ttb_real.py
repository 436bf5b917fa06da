"""`muster bench ttb --real`: both arms in wall time on this machine, and what the simulation said beforehand.

    ttb.toml ─ baseline, all parts ─► scaled ─► for each run, on a batch of its own:
        probe ─► Constants          predict baseline, predict all parts      (virtual clock)
                                    collect baseline, collect all parts      (wall clock, turn about)
                                                └─► TTB, by cause, beside the prediction

Law: both arms play the same programs, and a trajectory counts as played only when its verifier found the trace of every
command. The prediction is made before the run that it is compared with, from constants measured on another batch.
"""

from __future__ import annotations

import contextlib
import os
import platform
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from muster import clock
from muster.bench import daemons
from muster.bench.result import BenchResult, Target, Value
from muster.bench.ttb_declaration import Declaration
from muster.bench.ttb_real_constants import Constants, measure_constants, predict
from muster.bench.ttb_real_run import Place, RealRun, collect_real
from muster.bench.ttb_real_scale import Groups, Scale, scaled_groups, scaled_world
from muster.errors import ConfigError
from muster.journal import Journal
from muster.observe.critical_path import BatchTime, batch_time
from muster.observe.record import Record, read
from muster.sandbox.config import SandboxConfig
from muster.sandbox.docker.backend import DockerBackend
from muster.sim.collection import World
from muster.sim.workload import programs
from muster.types import ImageSpec, Limits, Stage

BUILT_IN = Path(__file__).with_name("ttb_real.toml")
BASELINE, ALL, DOCKER = "baseline", "all parts", "baseline, docker"
REDUCTION = 0.669
PREDICTION_ERROR = 0.15
_DOCKER_STARTS = 3
_CAUSES = {
    "sandbox_s": (Stage.SANDBOX_QUEUE, Stage.SANDBOX_START),
    "queue_s": (Stage.ENGINE_QUEUE,),
    "prefill_s": (Stage.PREFILL, Stage.RECOMPUTE),
    "decode_s": (Stage.DECODE,),
    "tool_s": (Stage.TOOL,),
    "verify_s": (Stage.VERIFIER_QUEUE, Stage.VERIFY),
}

Say = Callable[[str], None]


class RealConfig(Scale):
    """What is lived for real, and how small. The defaults are in `ttb_real.toml`, with their reasons."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fleet: str = Field(description="of the declaration")
    processes: int = Field(ge=1, description="that serve the replicas")
    runs: int = Field(ge=1, description="of each arm, in turn; each pair has a batch of its own")
    docker: bool = Field(default=False, description="the baseline once more, in containers of a private daemon")


class Over(BaseModel):
    """One comparison: a measured collection and what was predicted of it. Seconds are real ones."""

    model_config = ConfigDict(frozen=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """One arm in one run. `wrong`: trajectories that did not end as their program says."""

    ttb_s: float
    predicted_s: float
    parts: dict[Stage, float]
    hit_rate: float
    predicted_hit_rate: float
    cpu_share: float
    control_share: float
    wrong: int

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured; signed."""
        return self.predicted_s / self.ttb_s - 1


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
