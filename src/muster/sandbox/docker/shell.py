"""One bash behind an attached stream: a script in, an answer out.

    begin(script) ─► BEGIN? script, answer(token) ─► … ─► payload and output up to the token ─► Answer
                                                     └──► the stream ended ─► None

Law: it judges nothing. The daemon copies the two streams side by side, so an answer is whole when its token was seen
on both. Output is capped while it is read, and a flood is read slowly, so that its writer waits.
"""

from __future__ import annotations

import asyncio
import re
import secrets

from muster import clock
from muster.sandbox.command import Answer
from muster.sandbox.docker import scripts
from muster.sandbox.docker.scripts import Moment
from muster.sandbox.docker.stream import STDOUT, Stream
from muster.sandbox.output import HeadTail

_FLOOD_BYTES = 4 * 1024 * 1024  # of one command
_FLOOD_PAUSE_S = 0.002
_IDLE_BYTES = 64 * 1024  # what background processes write between two commands, kept for the next
_IDLE_PAUSE_S = 0.05
_PAYLOAD_BYTES = 2 * 1024 * 1024
_BEGUN = re.compile(rb"\0begin (\d+)\.(\d\d) (\d+)\n")  # /proc/uptime has hundredths, which are clock ticks


class Shell:
    """One script at a time. `begun`: when the current command began; None before it did."""

    def __init__(self, stream: Stream) -> None:
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._token = b""
        self._payload = bytearray()
        self._code: int | None = None
        self._sink: HeadTail | None = None
        self._held = b""  # the end of the output, which may be the beginning of the token
        self._output_done = True
        self._idle = bytearray()
        self.pid = 0
        self.begun: Moment | None = None
        self.heard_at = 0.0  # when the current command last wrote something
        self.answer: asyncio.Future[Answer | None] = self._loop.create_future()
        self.answer.set_result(None)
        stream.on_frame = self._on_frame
        stream.ended.add_done_callback(lambda _: self._finish(None))

    @property
    def alive(self) -> bool:
        return self._stream.open

    def begin(self, script: str) -> asyncio.Future[Answer | None]:
        """Run bash source in the shell itself. The answer is None if the shell ended; shield it if you may give up."""
        return self._begin(script, None)

    def run(self, command: str, sink: HeadTail) -> asyncio.Future[Answer | None]:
        """Run a user's command: its output, and what background processes wrote since the last one, to `sink`."""
        sink.add(bytes(self._idle))
        self._idle.clear()
        self.heard_at = clock.now()
        self.begun = None
        return self._begin(f"{scripts.BEGIN}\0{scripts.run(command)}", sink)

    def give_up(self) -> None:
        """Nobody waits for the current answer any more; what was held back belongs to the output."""
        if self._sink is not None:
            self._sink.add(self._held)
            self._held = b""

    def last_words(self) -> str:
        """Output that is no answer: why the shell did not start."""
        return (bytes(self._idle) + bytes(self._payload))[-500:].decode(errors="replace").strip()

    def close(self) -> None:
        self._stream.close()

    def _begin(self, script: str, sink: HeadTail | None) -> asyncio.Future[Answer | None]:
        assert self.answer.done(), "one script at a time"
        self.answer = self._loop.create_future()
        if not self.alive:
            self.answer.set_result(None)
            return self.answer
        token = secrets.token_hex(8)  # unguessable by the command; decides nothing else
        self._token, self._code, self._output_done = token.encode(), None, False
        self._payload.clear()
        self._sink = sink
        self._stream.send(f"{script}\0{scripts.answer(token)}\0".encode())
        return self.answer

    # --- what arrives -----------------------------------------------------------------------------------

    def _on_frame(self, kind: int, data: bytes) -> None:
        if kind == STDOUT:
            self._on_output(data)
        else:
            self._on_status(data)
        if self._code is not None and self._output_done:
            self._finish(Answer(exit_code=self._code, payload=bytes(self._payload)))

    def _on_output(self, data: bytes) -> None:
        if self._output_done:
            self._on_idle(data)
            return
        mark = b"\0" + self._token + b"\n"
        data = self._held + data
        end = data.find(mark)
        if end < 0:
            held = data.find(b"\0", max(0, len(data) - len(mark) + 1))
            held = held if held >= 0 else len(data)
            self._add(data[:held])
            self._held = data[held:]
            return
        self._add(data[:end])
        self._held, self._output_done = b"", True
        self._on_idle(data[end + len(mark) :])

    def _add(self, data: bytes) -> None:
        if self._sink is None or not data:
            return
        self.heard_at = clock.now()
        self._sink.add(data)
        if self._sink.total_bytes > _FLOOD_BYTES:
            self._stream.pause(_FLOOD_PAUSE_S)

    def _on_idle(self, data: bytes) -> None:
        self._idle += data
        if len(self._idle) > _IDLE_BYTES:
            del self._idle[:-_IDLE_BYTES]
            self._stream.pause(_IDLE_PAUSE_S)

    def _on_status(self, data: bytes) -> None:
        self._payload += data
        del self._payload[:-_PAYLOAD_BYTES]
        if self._sink is not None and self.begun is None and (begun := _BEGUN.search(self._payload)):
            self.begun = Moment(ticks=int(begun[1]) * 100 + int(begun[2]), last_pid=int(begun[3]))
            del self._payload[: begun.end()]
        start = self._payload.find(b"\0" + self._token + b" ")
        end = self._payload.find(b"\n", start)
        if start >= 0 and end >= 0:
            self._code = int(self._payload[start:end].split(b" ", 1)[1])
            del self._payload[start:]

    def _finish(self, answer: Answer | None) -> None:
        self.give_up()
        self._sink, self._output_done = None, True
        if not self.answer.done():
            self.answer.set_result(answer)
