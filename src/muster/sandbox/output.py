"""Head and tail of a stream. Law: memory is bounded by the cap while reading, whatever arrives.

chunk ─► head until full ─► tail, oldest bytes dropped and counted
"""

from __future__ import annotations


class HeadTail:
    """Keeps the first and the last `cap_bytes / 2` of what is added.

    Example: `h = HeadTail(8); h.add(b"0123456789"); h.text()` gives `"0123\\n[... 2 bytes omitted ...]\\n6789"`
    """

    def __init__(self, cap_bytes: int) -> None:
        self._head_cap = cap_bytes // 2
        self._tail_cap = cap_bytes - self._head_cap
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def add(self, chunk: bytes) -> None:
        self.total_bytes += len(chunk)
        room = self._head_cap - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail += chunk[-self._tail_cap :]
            del self._tail[: max(0, len(self._tail) - self._tail_cap)]

    @property
    def omitted_bytes(self) -> int:
        return self.total_bytes - len(self._head) - len(self._tail)

    def text(self) -> str:
        """Decoded as UTF-8; bytes that are not text become U+FFFD."""
        if not self.omitted_bytes:
            return (self._head + self._tail).decode(errors="replace")
        head, tail = self._head.decode(errors="replace"), self._tail.decode(errors="replace")
        return f"{head}\n[... {self.omitted_bytes} bytes omitted ...]\n{tail}"
