"""The disk limit of a sandbox whose writable layer is a plain directory. Law: pure arithmetic on measurements.

Measuring walks the layer, so it is done only when the limit could have been passed since the last time: a
process writes at most `WRITE_BYTES_PER_S`. Between two measurements a single file cannot pass the limit
either (RLIMIT_FSIZE), and a host that runs out of free space stops every writer. Under an exact quota (`quota`) the
layer cannot pass the limit at all, and the measurement is one system call.

    command runs ──poll_s──► measured(usage) ──► stop? ──► its writers are killed, the model reads ENOSPC
"""

from __future__ import annotations

from dataclasses import dataclass

WRITE_BYTES_PER_S = 2 * 1024**3  # page cache speed; a faster host overshoots by one poll
MIN_POLL_S = 0.1
MAX_POLL_S = 1.0


@dataclass(slots=True)
class DiskBudget:
    """Disk usage of one writable layer, as far as it is known. `limit_bytes` None: never due, never over."""

    limit_bytes: int | None
    used_bytes: int = 0
    unmeasured_s: float = 0.0

    @property
    def message(self) -> str:
        """Message that the model reads when it reached its disk limit."""
        limit = (self.limit_bytes or 0) / 1024**2
        return f"\nNo space left on device (this sandbox's disk limit of {limit:.0f} MiB is reached)\n"

    @property
    def poll_s(self) -> float | None:
        """While a command runs: seconds until the limit could be passed. None: never."""
        if self.limit_bytes is None:
            return None
        room = max(0, self.limit_bytes - self.used_bytes) / WRITE_BYTES_PER_S
        return min(max(room, MIN_POLL_S), MAX_POLL_S)

    def ran(self, duration_s: float) -> bool:
        """A command ran that long. True when it is time to measure."""
        self.unmeasured_s += duration_s
        return (
            self.limit_bytes is not None and self.used_bytes + self.unmeasured_s * WRITE_BYTES_PER_S > self.limit_bytes
        )

    def measured(self, used_bytes: int) -> bool:
        """Record a measurement. True when the limit is passed and usage grew: a command that frees space may run."""
        grew = used_bytes > self.used_bytes
        self.used_bytes = used_bytes
        self.unmeasured_s = 0.0
        return self.limit_bytes is not None and used_bytes > self.limit_bytes and grew
