"""Health of a replica, judged by its answers. Pure.

    starting ──answers, right version──► healthy ──a call fails──► suspect ──fails again──► dead
        │                                  ▲ ▲                        │                      │
        └──answers, other version──► stale ┘ └── answers ◄── asked ◄──┴──────────────────────┤
                                       ▲        (restarting: its restarter says so) ◄───────────┘
                                       └── whatever answers with another version              retired: drained, for good

Law: only a healthy replica gets turns. Every other one is asked until it answers with the version and digest that are
to be served; an answer alone proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DEAD_AFTER = 3
"""Failures in a row, asked for its state in between, until a replica is given up and its sessions move."""


class ReplicaState(StrEnum):
    """State of a replica, as the fleet believes it to be."""

    STARTING = "starting"  # has not answered yet
    HEALTHY = "healthy"  # serves
    SUSPECT = "suspect"  # a call failed; it is asked before it gets another turn
    STALE = "stale"  # answers, but holds other weights than are to be served
    DEAD = "dead"  # failed again and again, or its restarter saw it end
    RESTARTING = "restarting"  # its restarter is starting it again
    RETIRED = "retired"  # gets no turns any more, by decision


@dataclass(slots=True)
class Health:
    """Health of one replica, as its answers change it.

    Example: `h = Health(); h.answered(right=True); h.serves` gives True
    """

    state: ReplicaState = ReplicaState.STARTING
    failures: int = 0  # in a row

    @property
    def serves(self) -> bool:
        return self.state is ReplicaState.HEALTHY

    @property
    def unheard(self) -> bool:
        """Whether it was not even asked to the end yet."""
        return self.state is ReplicaState.STARTING and not self.failures

    @property
    def watched(self) -> bool:
        """Whether it should be asked how it is."""
        return self.state not in (ReplicaState.HEALTHY, ReplicaState.RETIRED)

    @property
    def gone(self) -> bool:
        """Whether what it had cached is lost."""
        return self.state in (ReplicaState.DEAD, ReplicaState.RESTARTING, ReplicaState.STALE)

    def answered(self, *, right: bool) -> None:
        """Note that it said which version it holds, and whether that is the one to be served."""
        if self.state is not ReplicaState.RETIRED:
            self.failures = 0
            self.state = ReplicaState.HEALTHY if right else ReplicaState.STALE

    def failed(self) -> None:
        """A call failed, or had no answer in time."""
        if self.state is ReplicaState.RETIRED:
            return
        self.failures += 1
        if self.failures >= DEAD_AFTER:
            self.state = ReplicaState.DEAD
        elif self.state is ReplicaState.HEALTHY:
            self.state = ReplicaState.SUSPECT

    def restarts(self) -> None:
        """Note that its restarter is starting it again."""
        if self.state is not ReplicaState.RETIRED:
            self.state = ReplicaState.RESTARTING

    def retire(self) -> None:
        self.state = ReplicaState.RETIRED
