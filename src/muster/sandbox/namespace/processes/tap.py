"""Everything that processes write, read as it comes into one bounded sink.

    pipe ─┐
    tty  ─┼─► Tap ─► HeadTail        take() ─► what came since the last take()
    pipe ─┘

Law: a writer is never blocked for long and never fills our memory. Sources are read all the time, between commands
too, since a server that writes its log must go on. A flood is read slowly, so that its writer waits and not we.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os

from muster import clock
from muster.sandbox.output import HeadTail

_CHUNK_BYTES = 65_536
_FLOOD_BYTES = 4 * 1024 * 1024  # in one take; from here on it is read slowly
_FLOOD_CHUNK_BYTES = 1024 * 1024
_FLOOD_PAUSE_S = 0.002
_IDLE_PAUSE_S = 0.05  # nobody waits for what a background process floods between commands
_DRAIN_CHUNKS = 16


class Tap:
    """Reads any number of descriptors, which it owns, until each ends or `close`.

    Example: `tap = Tap(cap_bytes=8192); tap.add(read_end); ...; text = tap.take().text()`
    """

    def __init__(self, cap_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._cap_bytes = cap_bytes
        self._sink = HeadTail(cap_bytes)
        self._sources: dict[int, asyncio.TimerHandle | None] = {}  # with the timer of one that is paused
        self.idle = True
        self.last_s = clock.now()
        """When something last came."""

    def add(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._sources[fd] = None
        self._loop.add_reader(fd, self._on_readable, fd)

    def take(self) -> HeadTail:
        """Take what came since the last call, with all that is in the pipes by now."""
        for fd in list(self._sources):
            # a background writer may refill it for ever
            for _ in range(_DRAIN_CHUNKS):
                if fd not in self._sources or not self._read(fd, _CHUNK_BYTES):
                    break
        sink, self._sink = self._sink, HeadTail(self._cap_bytes)
        return sink

    def begin(self) -> None:
        """Somebody waits from now on; what is paused is read at once."""
        self.idle = False
        self.last_s = clock.now()
        for fd, timer in self._sources.items():
            if timer is not None:
                timer.cancel()
                self._resume(fd)

    def close(self) -> None:
        for fd in list(self._sources):
            self._drop(fd)

    def _on_readable(self, fd: int) -> None:
        flood = self._sink.total_bytes > _FLOOD_BYTES
        if self._read(fd, _FLOOD_CHUNK_BYTES if flood else _CHUNK_BYTES) and flood:
            self._loop.remove_reader(fd)
            pause_s = _IDLE_PAUSE_S if self.idle else _FLOOD_PAUSE_S
            self._sources[fd] = self._loop.call_later(pause_s, self._resume, fd)

    def _resume(self, fd: int) -> None:
        self._sources[fd] = None
        with contextlib.suppress(OSError):  # a terminal has no such size
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _FLOOD_CHUNK_BYTES)
        self._loop.add_reader(fd, self._on_readable, fd)

    def _read(self, fd: int, size_bytes: int) -> bool:
        """True if something came. A source that ended is dropped."""
        try:
            chunk = os.read(fd, size_bytes)
        except BlockingIOError:
            return False
        except OSError:  # EIO: no process has the terminal open any more
            chunk = b""
        if not chunk:
            self._drop(fd)
            return False
        self._sink.add(chunk)
        self.last_s = clock.now()
        return True

    def _drop(self, fd: int) -> None:
        timer = self._sources.pop(fd)
        if timer is not None:
            timer.cancel()
        self._loop.remove_reader(fd)
        os.close(fd)
