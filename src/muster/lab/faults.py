"""Faults that are ordered of a replica without a model: it dies and comes back, hangs, or its answer is lost.

    crash ─► every call fails ─ restart ─► stale: no request is served ─ commit ─► serves

Law: a fault is an `EngineError`, or no answer at all. Work whose answer is lost was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal

from muster.errors import EngineError
from muster.types import Version

ReplicaCall = Literal["generate", "score", "statistics", "stage", "pause", "commit", "resume"]

INITIAL = Version(number=0, digest="initial")
"""What a replica holds before anything was published to it, or says so after a restart."""


class InjectedFaults:
    """Of the replica `name`, which makes each of its calls `during` them.

    Example:
        faults.hang("stage")
        async with faults.during("stage"):  # does not begin
            ...
    """

    def __init__(self, name: str) -> None:
        self.stale = False  # until a commit: a restarted replica holds unknown weights
        self.death: str | None = None
        self._name = name
        self._hanging: set[ReplicaCall] = set()
        self._unacknowledged: set[ReplicaCall] = set()

    @property
    def serves(self) -> bool:
        return self.death is None and not self.stale

    def crash(self, reason: str) -> str:
        """Every later call fails, and those that are pending when they end; returns what they fail with."""
        self.death = f"{self._name} is dead: {reason}"
        return self.death

    def restart(self) -> None:
        self.death, self.stale = None, True

    def hang(self, call: ReplicaCall) -> None:
        """The next such call never answers (until it is cancelled)."""
        self._hanging.add(call)

    def lose_acknowledgement(self, call: ReplicaCall) -> None:
        """The next such call does its work and then fails."""
        self._unacknowledged.add(call)

    @asynccontextmanager
    async def during(self, call: ReplicaCall) -> AsyncGenerator[None]:
        if call in self._hanging:
            self._hanging.discard(call)
            await asyncio.Event().wait()
        self.check_alive()
        yield
        self.check_alive()
        if call in self._unacknowledged:
            self._unacknowledged.discard(call)
            raise self.lost(call)

    def check_alive(self) -> None:
        if self.death is not None:
            raise EngineError(self.death)

    def check_weights(self) -> None:
        if self.stale:
            raise EngineError(f"{self._name} is stale: it has no published weights")

    def lost(self, call: ReplicaCall) -> EngineError:
        """The error of a caller whose answer is lost."""
        return EngineError(f"{self._name}: the connection broke before the answer to {call}")
