"""Which replica serves a turn, and when. Pure: no clock, no event loop, no engine; every event says what time it is.

    request ─► placed at once, or waits ─► placed by a later event ─► ended ─► … ─► released
                                    └────► withdrawn

Law: each request is placed exactly once, or withdrawn.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Policy = Literal["affinity", "round_robin", "least_loaded", "consistent_hash"]


class RouterConfig(BaseModel):
    """How turns find replicas."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Policy = Field(default="affinity", description="affinity: a session stays where its cache is")
    request_timeout_s: float = Field(default=1800.0, gt=0, description="deadline of one request at a replica")
    wait_s: float = Field(default=600.0, gt=0, description="how long a call waits when no replica serves")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The request `ticket` goes to `replica` now."""

    ticket: int
    replica: str


@dataclass(slots=True)
class _Replica:
    name: str
    running: int = 0


@dataclass(slots=True)
class _Session:
    group: str
    home: str | None = None


@dataclass(slots=True)
class Router:
    """Example: `Router(RouterConfig()).request(1, "t1", group="g1", tokens=900, reply_tokens=200, now=0.0)`"""

    config: RouterConfig
    _replicas: dict[str, _Replica] = field(init=False, default_factory=dict[str, _Replica])
    _sessions: dict[str, _Session] = field(init=False, default_factory=dict[str, _Session])
    _groups: dict[str, str] = field(init=False, default_factory=dict[str, str])
    _running: dict[int, str] = field(init=False, default_factory=dict[int, str])
    _turn: int = field(init=False, default=0)

    def join(self, name: str, *, kv_capacity_tokens: int, capacity: int, now: float) -> list[Placed]:
        self._replicas[name] = _Replica(name)
        return []

    def leave(self, name: str, now: float) -> list[Placed]:
        self._replicas.pop(name, None)
        return []

    def request(
        self, ticket: int, session: str, *, group: str, tokens: int, reply_tokens: int, now: float
    ) -> list[Placed]:
        state = self._sessions.setdefault(session, _Session(group))
        replica = self._choose(session, state)
        state.home = replica.name
        replica.running += 1
        self._running[ticket] = replica.name
        return [Placed(ticket=ticket, replica=replica.name)]

    def ended(self, ticket: int, *, tokens: int, cached_tokens: int, now: float) -> list[Placed]:
        replica = self._replicas.get(self._running.pop(ticket))
        if replica is not None:
            replica.running -= 1
        return []

    def withdraw(self, ticket: int, now: float) -> list[Placed]:
        return []

    def released(self, session: str, now: float) -> list[Placed]:
        self._sessions.pop(session, None)
        return []

    def _choose(self, session: str, state: _Session) -> _Replica:
        replicas = list(self._replicas.values())
        match self.config.policy:
            case "round_robin":
                self._turn += 1
                return replicas[self._turn % len(replicas)]
            case "consistent_hash":
                return max(replicas, key=lambda r: _weight(session, r.name))
            case "least_loaded":
                return _least(replicas)
            case "affinity":
                home = self._replicas.get(state.home or self._groups.get(state.group, ""))
                home = home or _least(replicas)
                if state.group:
                    self._groups[state.group] = home.name
                return home


def _least(replicas: Iterable[_Replica]) -> _Replica:
    return min(replicas, key=lambda r: r.running)


def _weight(session: str, replica: str) -> int:
    """Rendezvous hashing: of the replicas' weights for a session the highest wins."""
    return zlib.crc32(f"{session}|{replica}".encode())
