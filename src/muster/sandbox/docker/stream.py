"""The attached stream of a container or an exec, on the event loop.

    daemon ─► socket ─► Frames ─► on_frame(STDOUT | STDERR, bytes) … on_end()
    send(bytes) ─► socket ─► standard input of the process

Law: this file knows sockets and frames; it judges nothing. The process must not write before it was sent something:
what arrives together with the daemon's answer to the request is lost in the HTTP client's buffer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

STDOUT, STDERR = 1, 2
_CHUNK_BYTES = 262_144
_HEADER_BYTES = 8  # stream, three zeros, length of what follows: big endian


class Frames:
    """Splits the multiplexed stream of the daemon's `attach` into its parts.

    Example: `Frames().feed(b"\\x01\\0\\0\\0\\0\\0\\0\\x02hi")` gives `[(1, b"hi")]`
    """

    def __init__(self) -> None:
        self._header = b""
        self._kind = 0
        self._left = 0  # bytes of the current frame that are still to come

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Frames that `data` completes; one that arrives in pieces is given in pieces."""
        parts: list[tuple[int, bytes]] = []
        while data:
            if self._left:
                parts.append((self._kind, data[: self._left]))
                taken = len(parts[-1][1])
            else:
                taken = _HEADER_BYTES - len(self._header)
                self._header += data[:taken]
                if len(self._header) < _HEADER_BYTES:
                    break
            data = data[taken:]
            if self._left:
                self._left -= taken
            else:
                self._kind, self._left = self._header[0], int.from_bytes(self._header[4:], "big")
                self._header = b""
        return parts


class Stream:
    """Owns the descriptor `fd` of a connected socket. Create it on the loop that will use it."""

    def __init__(self, fd: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._frames = Frames()
        self._unsent = b""
        self._paused = False
        self.on_frame: Callable[[int, bytes], None] = lambda kind, data: None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._on_readable)

    @property
    def open(self) -> bool:
        return not self.ended.done()

    def send(self, data: bytes) -> None:
        """Never blocks; what the socket does not take now is sent later. Ignored once the stream has ended."""
        self._unsent += data
        if self.open:
            self._on_writable()

    def pause(self, pause_s: float) -> None:
        """Read nothing for a while: the writer at the other end has to wait."""
        if self.open and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._fd)
            self._loop.call_later(pause_s, self._resume)

    def close(self) -> None:
        if not self.open:
            return
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        os.close(self._fd)
        self.ended.set_result(None)

    # --- event loop callbacks ---------------------------------------------------------------------------

    def _resume(self) -> None:
        self._paused = False
        if self.open:
            self._loop.add_reader(self._fd, self._on_readable)

    def _on_readable(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:  # reset by the daemon: no more will come
            data = b""
        if not data:
            self.close()
            return
        for kind, part in self._frames.feed(data):
            self.on_frame(kind, part)

    def _on_writable(self) -> None:
        try:
            sent = os.write(self._fd, self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._unsent = b""
            self.close()
            return
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._loop.add_writer(self._fd, self._on_writable)
        else:
            self._loop.remove_writer(self._fd)
