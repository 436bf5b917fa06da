"""A lease: one user's sandbox, for as long as it is used.

    LeaseRequest ─► Lease ─ had its share, and others wait ─► give_way: kept, closed ─► a fork of the kept state, later

Law: a lease holds one slot of its lane while `holds`, and none while it waits for its next turn. How long it has had a
sandbox is what decides whose turn it is (`slots`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from muster import clock
from muster.sandbox.pool.place import LeasedSandbox
from muster.sandbox.port import Mount, Sandbox, Snapshot
from muster.types import Limits


class Lane(StrEnum):
    """Share of the pool's capacity that a lease uses."""

    AGENT = "agent"
    VERIFIER = "verifier"


@dataclass(frozen=True, slots=True)
class ForkKind:
    """Kind of fork: those of one kind can stand in for each other."""

    snapshot_id: str
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """Request that a lease was asked for with."""

    snapshot: Snapshot
    limits: Limits
    label: str
    lane: Lane
    mounts: tuple[Mount, ...]
    toolchain: Snapshot | None

    @property
    def kind(self) -> ForkKind:
        return ForkKind(self.snapshot.id, self.limits)


class Giver(Protocol):
    """Giver of leases, which takes a slot back for a while; `pool.Pool` is one."""

    def gives_way(self, lease: Lease) -> bool: ...

    async def give_way(self, lease: Lease) -> bool: ...


class Lease:
    """A sandbox for one user. `queued_s`: waited for a slot. `start_s`: waited for its fork, ~0 when warm."""

    def __init__(
        self, pool: Giver, request: LeaseRequest, sandbox: Sandbox, *, queued_s: float, start_s: float, warm: bool
    ):
        self.queued_s = queued_s
        self.start_s = start_s
        self.warm = warm
        self.sandbox = LeasedSandbox(sandbox)
        self.request = request
        self._pool = pool
        self._had_s = 0.0  # before the last pause
        self._since = clock.now()
        self.holds = True  # a slot and a sandbox

    @property
    def attained_s(self) -> float:
        """For how long it has had a sandbox."""
        return self._had_s + (clock.now() - self._since if self.holds else 0.0)

    @property
    def should_give_way(self) -> bool:
        """Between two turns: whether to `give_way`."""
        return self._pool.gives_way(self)

    async def give_way(self) -> bool:
        """Freeze the sandbox, let others have the slot, and go on in a fork when it is this one's turn again.

        False, and nothing is done, when the agent would notice. Sets `queued_s` and `start_s`. Raises `SandboxError`.
        """
        return await self._pool.give_way(self)

    def paused(self) -> None:
        self._had_s, self.holds = self.attained_s, False

    def resumed(self, request: LeaseRequest, sandbox: Sandbox, *, queued_s: float, start_s: float) -> None:
        self.request = request
        self.sandbox.move(sandbox)
        self.queued_s, self.start_s, self.warm = queued_s, start_s, False
        self._since, self.holds = clock.now(), True
