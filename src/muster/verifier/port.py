"""The verifier port: a task and a frozen final state in, an outcome out.

The verifier never sees the live sandbox: it forks `final`, in which no process of the agent is alive.
"""

from __future__ import annotations

from typing import Protocol

from muster.sandbox.port import Snapshot
from muster.types import Outcome, Task, Trajectory


class Verifier(Protocol):
    """Verifier port: grades by fact. Never raises for what happens inside a sandbox: that is part of the outcome."""

    async def grade(
        self, task: Task, final: Snapshot, pristine: Snapshot, trajectory: Trajectory | None = None
    ) -> Outcome:
        """`pristine` is the state before the agent: the control run forks it.

        `trajectory` is what the agent did, as far as it goes; its own outcome is not known yet. None in an audit.
        """
        ...
