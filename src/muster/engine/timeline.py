"""Timeline of a device, as intervals. Law: at each instant it is in exactly one state, and none is lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster.engine.port import DeviceInterval
from muster.types import DeviceState


@dataclass(slots=True)
class Timeline:
    """Collects states from `start` on. Equal neighbours merge.

    Example: `t.enter(DeviceState.DECODE, now)`, work, `t.enter(DeviceState.IDLE, now)`, `t.take(now)`.
    """

    start: float
    state: DeviceState = DeviceState.LOADING
    _done: list[DeviceInterval] = field(init=False, default_factory=list[DeviceInterval])

    def enter(self, state: DeviceState, now: float) -> None:
        """From `now` on the device is in `state`."""
        if state == self.state:
            return
        self._close(now)
        self.state = state

    def take(self, now: float) -> tuple[DeviceInterval, ...]:
        """The intervals since the previous call, the current one cut at `now`."""
        self._close(now)
        taken, self._done = tuple(self._done), []
        return taken

    def _close(self, now: float) -> None:
        end = max(now, self.start)
        if end > self.start:
            self._done.append(DeviceInterval(state=self.state, start=self.start, end=end))
        self.start = end
