"""Faults and chance: what may go wrong in a simulated world, and the one place that decides whether it does.

Law: all chance of a world comes from the generators of its `Chaos`, in the order of its events; a fault that is not
enabled draws nothing. Every fault that happened is counted, so that a summary can show that it did.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar
from enum import StrEnum

import numpy as np


class Fault(StrEnum):
    """One kind of disaster each. The sentence says what the world does, never what we should do about it."""

    BOOT_FAILURE = "boot_failure"  # a sandbox does not start
    BOOT_OUTAGE = "boot_outage"  # for ten minutes, 60 % of the sandboxes do not start
    SLOW_BOOT = "slow_boot"  # a cold image: half a minute instead of half a second
    SANDBOX_HANG = "sandbox_hang"  # a command's call never returns
    SANDBOX_SLOW = "sandbox_slow"  # the host stalls: the answer comes late
    SANDBOX_DEATH = "sandbox_death"  # a sandbox vanishes in mid-command
    SANDBOX_DESTROYED = "sandbox_destroyed"  # the model ends its own sandbox
    VERIFIER_HANG = "verifier_hang"  # a verifier runs until its time-out
    VERIFIER_CRASH = "verifier_crash"  # a verifier gives no reward, for no reason of the model's
    VERIFIER_LOST = "verifier_lost"  # a verifier's sandbox vanishes
    VERIFIER_BROKEN = "verifier_broken"  # a task whose verifier never works, not even on the untouched state
    ENGINE_CRASH = "engine_crash"  # a replica dies in mid-request and comes back later, with old weights
    ENGINE_RESTART = "engine_restart"  # a replica dies and is back at once, with old weights
    ENGINE_HANG = "engine_hang"  # a request never returns
    LOST_ACK = "lost_ack"  # the work is done, the answer is lost
    DOUBLED_ACK = "doubled_ack"  # a call arrives twice
    SLOW_PUBLISH = "slow_publish"  # staging takes minutes
    LONG_TRAJECTORIES = "long_trajectories"  # a third of the trajectories are ten times as long
    TRAINER_FAILURE = "trainer_failure"  # a step fails, and its process ends
    KILL = "kill"  # the orchestrator is killed between two commits


ATTEMPT: ContextVar[str] = ContextVar("attempt")
"""Id of the launch whose attempt makes the present call; set by `watched.WatchedAttempts`."""


class Chaos:
    """Chance of a simulated world: decides whether a fault happens.

    Example: `chaos.happens(Fault.SANDBOX_DEATH)` is True with that fault's probability, and then counts it.
    """

    def __init__(self, seed: int, rates: Mapping[Fault, float]) -> None:
        self.rates = dict(rates)
        self.rng = np.random.default_rng([seed, 1])
        self.injected: Counter[str] = Counter()
        self.faulted: set[str] = set()  # launches that met a fault that ends an attempt

    def happens(self, fault: Fault) -> bool:
        rate = self.rates.get(fault, 0.0)
        if rate <= 0 or self.rng.random() >= rate:
            return False
        self.injected[fault] += 1
        return True

    def mark_faulted(self, launch: str | None = None) -> None:
        """Note that the present attempt (or `launch`) was hit by what is not its model's doing."""
        self.faulted.add(launch or ATTEMPT.get())


def stream(seed: int, name: str) -> np.random.Generator:
    """A generator for each name, the same in every process."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])
