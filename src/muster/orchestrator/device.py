"""A device's states as they change, written to the journal without gap or overlap."""

from __future__ import annotations

from muster import clock
from muster.journal import DeviceRow, Journal
from muster.types import DeviceState


class DeviceRecorder:
    """Recorder of one device's states.

    Example: `trainer.enter(DeviceState.TRAIN)` ends the previous state and begins the next.
    """

    def __init__(self, journal: Journal, device: str, state: DeviceState) -> None:
        self._journal = journal
        self._device = device
        self.state = state
        self._since = clock.now()

    @property
    def since(self) -> float:
        """Time at which the present state began."""
        return self._since

    def enter(self, state: DeviceState) -> None:
        if state is self.state:
            return
        self.close()
        self.state = state

    def close(self) -> None:
        """Write the present state up to now; it goes on."""
        now = clock.now()
        if now > self._since:
            self._journal.record(DeviceRow(device=self._device, state=str(self.state), start=self._since, end=now))
            self._since = now
