"""Slow-down of engines and trainer on one machine, by each other, and what each would have needed alone.

Law: pure over rows. Processes that each take every core share them equally (processor sharing, Kleinrock 1967): while n
are busy, each does 1/n of what it would do alone. So the seconds that a device needed are ∫ 1/n over its busy time, and

    share = ∫ 1/n(t) dt / ∫ dt      over the busy time of the engines, and over the trainer's

is what its measured durations are multiplied with. A synchronous run with one engine has both shares at 1. Forwards, a
simulation whose devices overlap is as slow as shares that it shows itself: a fixed point.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from muster.engine.timing import EngineTiming
from muster.journal import DeviceRow
from muster.lab.collection.collection import CollectionWorld
from muster.types import DeviceState

TRAINER = "trainer"
COMPUTING = frozenset({DeviceState.PREFILL, DeviceState.RECOMPUTE, DeviceState.DECODE})
TRAINING = frozenset({DeviceState.TRAIN, DeviceState.PUBLISH, DeviceState.CHECKPOINT})
"""While it evaluates, the trainer waits for engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Shares of a measured second that it would have been alone. In (0, 1]."""

    engine: float = 1.0
    trainer: float = 1.0

    def close_to(self, other: Shares) -> bool:
        """Within 2 % of a second."""
        return abs(self.engine - other.engine) < 0.02 and abs(self.trainer - other.trainer) < 0.02


def slowed(world: CollectionWorld, by: Shares) -> CollectionWorld:
    """`world`, whose times are those of devices that have the machine to themselves, when they have these shares."""
    engine, training = world.fleet.config(), world.training
    timing = EngineTiming(**{name: s / by.engine for name, s in engine.timing.model_dump().items()})
    own = ("step_s", "token_s", "export_s", "checkpoint_s")
    return world.with_(
        fleet={"engine": engine.model_copy(update={"timing": timing})},
        training={name: getattr(training, name) / by.trainer for name in own},
    )


def shares(rows: Iterable[DeviceRow], start: float, end: float) -> Shares:
    """Of the devices of one machine, during [start, end)."""
    times: list[float] = []
    changes: list[tuple[int, int]] = []  # of busy engines, of busy trainers
    for row in rows:
        kind = (0, 1) if row.device == TRAINER else (1, 0)
        busy = TRAINING if row.device == TRAINER else COMPUTING
        left, right = max(row.start, start), min(row.end, end)
        if row.state in busy and right > left:
            times += [left, right]
            changes += [kind, (-kind[0], -kind[1])]
    if not times:
        return Shares()
    order = np.argsort(times, kind="stable")
    width_E = np.diff(np.array(times)[order])
    engines_E, trainers_E = np.cumsum(np.array(changes)[order], axis=0)[:-1].T
    rate_E = 1 / np.maximum(1, engines_E + trainers_E)
    return Shares(engine=_share(engines_E * width_E, rate_E), trainer=_share(trainers_E * width_E, rate_E))


def _share(busy_E: npt.NDArray[np.float64], rate_E: npt.NDArray[np.float64]) -> float:
    whole = float(busy_E.sum())
    return float((busy_E * rate_E).sum()) / whole if whole > 0 else 1.0
