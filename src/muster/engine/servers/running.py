"""A server while it runs: its replica, and the silence that is its end.

Law: silence is what the ordinary question meets, "how are you?", whoever asks it: nobody asks for the sake of this.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from muster import clock
from muster.engine.pieces import streamed
from muster.engine.port import EngineStatistics, Replica
from muster.errors import EngineError

OnEnd = Callable[[str], None]
"""Called once, with a server's last words or with the reason why it must end."""


class Silence:
    """Time that a server has not answered, counted from the first question that it left open. Pure.

    Example: `s = Silence(300.0); s.unanswered(0.0, 10.0); s.unanswered(295.0, 305.0)` gives None, then 305.0
    """

    def __init__(self, wedged_s: float) -> None:
        """wedged_s: so much of it is too much."""
        self._wedged_s = wedged_s
        self._since: float | None = None

    def answered(self) -> None:
        self._since = None

    def unanswered(self, asked: float, now: float) -> float | None:
        """A question of time `asked` failed, or was given up now: seconds of silence if they are too many."""
        if self._since is None:
            self._since = asked
        silent_s = now - self._since
        return silent_s if silent_s >= self._wedged_s else None


class RunningServer:
    """Example: `await RunningServer(replica, wedged_s=300.0, end=stop).statistics()`"""

    def __init__(self, replica: Replica, *, wedged_s: float = math.inf, end: OnEnd = lambda words: None) -> None:
        """end: called when it has been silent for `wedged_s`."""
        self.replica = replica
        self.stream = streamed(replica)
        self._wedged_s = wedged_s
        self._end = end
        self._silence = Silence(wedged_s)

    async def statistics(self) -> EngineStatistics:
        """The question by which silence is told: a server that lives answers it at any time, and soon."""
        asked = clock.now()
        try:
            answer = await self.replica.statistics()
        except (EngineError, asyncio.CancelledError):  # the fleet gives up a question by cancelling it
            if (silent_s := self._silence.unanswered(asked, clock.now())) is not None:
                self._end(f"it has not said for {silent_s:.0f} s how it is (servers.wedged_s = {self._wedged_s:g})")
            raise
        self._silence.answered()
        return answer
