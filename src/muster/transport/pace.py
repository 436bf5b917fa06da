"""No faster than agreed, no longer than agreed: what a copy asks after every chunk.

Law: after any t seconds at most `rate * t` bytes and one chunk have passed, whatever stalled in between: a token
bucket as deep as a chunk.

    chunk read ─► Pace.spent(size) ─┬─ ahead of the rate ─► sleep
                                    └─ past the deadline, or stopped ─► PublicationError
"""

from __future__ import annotations

import threading

from muster import clock
from muster.errors import PublicationError

_CHUNK_BYTES = 1 << 20
_CHUNKS_PER_S = 10  # under a cap: short sleeps, so that what stops a copy is seen soon


class TokenBucket:
    """Token bucket: bytes that may pass now. Pure: the caller brings the time.

    Example: `TokenBucket(1e6, depth_bytes=1e5, now=0.0).take(2e5, now=0.0)` is 0.1: wait so many seconds.
    """

    def __init__(self, bytes_per_s: float, *, depth_bytes: float, now: float) -> None:
        self._rate, self._depth = bytes_per_s, depth_bytes
        self._level, self._at = depth_bytes, now

    def take(self, size_bytes: float, now: float) -> float:
        """Take them; returns how long to wait before any more."""
        self._level = min(self._depth, self._level + (now - self._at) * self._rate) - size_bytes
        self._at = now
        return max(0.0, -self._level / self._rate)


class Pace:
    """The limits of one copy. Blocking.

    max_bytes_per_s: None is as fast as it goes. timeout_s: from now on. stopped: set by another thread.
    """

    def __init__(self, *, max_bytes_per_s: float | None, timeout_s: float, stopped: threading.Event) -> None:
        self.chunk_bytes = _CHUNK_BYTES
        self._bucket: TokenBucket | None = None
        self._timeout_s, self._deadline, self._stopped = timeout_s, clock.now() + timeout_s, stopped
        if max_bytes_per_s is not None:
            self.chunk_bytes = min(_CHUNK_BYTES, max(1, int(max_bytes_per_s / _CHUNKS_PER_S)))
            self._bucket = TokenBucket(max_bytes_per_s, depth_bytes=self.chunk_bytes, now=clock.now())

    def spent(self, size_bytes: int) -> None:
        """After a chunk. Raises `PublicationError` when there is no time left for the next."""
        wait_s = self._bucket.take(size_bytes, clock.now()) if self._bucket else 0.0
        self.wait(wait_s)

    def wait(self, delay_s: float) -> None:
        """Raises `PublicationError` when it would end past the deadline."""
        if self._stopped.is_set():
            raise PublicationError("the receiver was closed")
        if clock.now() + delay_s >= self._deadline:
            raise PublicationError(f"not fetched within {self._timeout_s:g} s; raise the deadline or the bandwidth cap")
        if delay_s > 0:
            clock.block(delay_s)
