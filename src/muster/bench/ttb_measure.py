"""One collection measured: its time by cause, against its bound; what it wasted; whom it selected.

    World, seed ─simulate─► journal, counters ─► Measured (numbers alone, to be sent between processes)

Law: lengths are those of the programs that were dispatched, also of the ones that were cancelled before they ended: what a
policy leaves out cannot hide by never ending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from muster.journal import BatchRow, DropRow, LaunchRow
from muster.observe.critical_path import batch_time
from muster.observe.devices import device_ledger
from muster.observe.record import Record, read
from muster.sim.collection import Collected, World, simulate
from muster.sim.planned_bounds import planned_bounds
from muster.types import DeviceState, Stage

READY_S = 0.025
"""What a sandbox takes to be ready at the least, in the bounds of every arm: a fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of one world and seed; several batches are means over them.

    parts: seconds by cause, they sum to `ttb_s`. bound_s: the largest lower bound of the batch's work, and its name.
    states: share of engine time between opening and ready. hit_rate: prompt tokens found in a cache. recomputed_tokens:
    prompt tokens computed more than once. wasted_tokens: sampled, and in no batch. wasted_slot_s: sandbox seconds spent on
    booting, stopping and attempts that no batch holds. length_ratio, p90_ratio: sampled tokens of the batches' members over
    those of all dispatched programs. inclusion: share of dispatched programs in a batch, by decile of length.
    """

    ttb_s: float
    parts: Mapping[Stage, float]
    bound_s: float
    bound: str
    states: Mapping[DeviceState, float]
    hit_rate: float
    best_hit_rate: float
    recomputed_tokens: int
    prompt_tokens: int
    wasted_tokens: int
    sampled_tokens: int
    wasted_slot_s: float
    preemptions: int
    length_ratio: float
    p90_ratio: float
    inclusion: tuple[float, ...]
    batches: int
    refills: int
    digest: str

    @property
    def score(self) -> float:
        """TTB over its bound."""
        return self.ttb_s / self.bound_s

    @property
    def env_wait(self) -> float:
        return self.states.get(DeviceState.ENV_WAIT, 0.0)


def measure(world: World, seed: int) -> Measured:
    """Simulate and measure. Deterministic."""
    collected = simulate(world, seed)
    try:
        return _measured(collected)
    finally:
        collected.journal.close()
