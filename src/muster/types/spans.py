"""Spans of time. Times are seconds on `clock.now()`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """Stage that a trajectory (or a batch) was waiting in. Each instant of a TTB belongs to exactly one."""

    ADMISSION = "admission"  # waiting for a slot or for permission to start
    SANDBOX_QUEUE = "sandbox_queue"  # waiting for the pool
    SANDBOX_START = "sandbox_start"
    ENGINE_QUEUE = "engine_queue"  # sent, not yet computing; includes transport
    PREFILL = "prefill"
    RECOMPUTE = "recompute"  # prefill of tokens whose cache was lost
    DECODE = "decode"
    TOOL = "tool"  # the model's own command runs
    VERIFIER_QUEUE = "verifier_queue"
    VERIFY = "verify"
    INFRA_RETRY = "infra_retry"  # time spent on an attempt that infrastructure lost
    PUBLICATION_PAUSE = "publication_pause"  # the engine was paused for new weights
    REFILL = "refill"  # replacing a group without gradient, too stale, or short
    ASSEMBLY = "assembly"  # everything else: our own bookkeeping


class DeviceState(StrEnum):
    """State of a device (engine replica or trainer rank). It is in exactly one state at each instant."""

    PREFILL = "prefill"
    RECOMPUTE = "recompute"
    DECODE = "decode"
    IDLE = "idle"  # as the engine sees it; the ledger splits it into env_wait and no_work
    ENV_WAIT = "env_wait"  # no running request while live trajectories are in a sandbox or verifier
    NO_WORK = "no_work"  # no live trajectory
    PUBLISH_PAUSE = "publish_pause"
    LOADING = "loading"
    DOWN = "down"
    TRAIN = "train"
    BATCH_WAIT = "batch_wait"
    PUBLISH = "publish"
    EVALUATE = "evaluate"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """`owner` (a trajectory or device id) was in `stage` during [start, end), in seconds on `clock.now()`."""

    owner: str
    stage: Stage | DeviceState
    start: float
    end: float

    @property
    def duration_s(self) -> float:
        return self.end - self.start
