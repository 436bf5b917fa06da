"""A child process that answers calls, seen from its parent.

Law: no torch on this side. Calls are answered in order; a call that is cancelled is forgotten here and finishes there.
When the process dies, every pending call fails at once with what it last wrote to stderr. Whatever kills this
process ends that one: it watches its end of the socket.

    call ─► TrainerCall ══ socket ══► muster.trainer.process.worker ══► TrainerReply ─► future of the call
                                       └─ stderr ─► kept tail ─► TrainerError
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import sys
from collections import deque
from typing import Any

from muster import clock
from muster.errors import TrainerError
from muster.trainer.process.messages import LENGTH_BYTES, TrainerCall, TrainerReply, TrainerSetup, frame

_CLOSE_TIMEOUT_S = 5.0
_STDERR_LINES = 40
_ENVIRONMENT = {
    # Threads that wait must sleep, not spin: engine and trainer share cores when they run at the same time, and a
    # spinning thread holds the core that the thread it waits for needs. On two busy cores a step took 5 times as long.
    "OMP_WAIT_POLICY": "passive",
    # Keep and reuse big buffers: page faults take a good part of a step otherwise.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}


class Link:
    """A running worker and the calls that wait for it. Made by `open_link`."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._writer = writer
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._requests = 0
        self._death: str | None = None
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._last_words = asyncio.create_task(self._keep_stderr())
        self._listening = asyncio.create_task(self._answers(reader))

    async def call(self, method: str, arguments: tuple[Any, ...] | TrainerSetup, keywords: dict[str, Any]) -> Any:
        """Raises what the method raised there, or `TrainerError` when the process is or becomes dead."""
        if self._death is not None:
            raise self._death_error()
        self._requests += 1
        request = TrainerCall(id=self._requests, method=method, arguments=arguments, keywords=keywords)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[request.id] = answer
        try:
            self._writer.write(frame(request))
            return await answer
        finally:
            self._calls.pop(request.id, None)

    async def close(self) -> None:
        """End the process; pending calls fail. Idempotent."""
        self._die("the trainer was closed")
        self._writer.close()
        try:
            async with clock.timeout(_CLOSE_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._listening

    async def _answers(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
                self._settle(pickle.loads(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            code = await self._process.wait()
            await self._last_words
            self._die(f"the trainer's process ended with code {code}")

    def _settle(self, answer: TrainerReply) -> None:
        call = self._calls.get(answer.id)
        if call is None or call.done():
            return  # its caller was cancelled
        if answer.error is not None:
            call.set_exception(answer.error)
        else:
            call.set_result(answer.value)

    def _die(self, why: str) -> None:
        """Remember the first cause of death and give it to all who wait."""
        if self._death is None:
            self._death = why
        for call in self._calls.values():
            if not call.done():
                call.set_exception(self._death_error())

    def _death_error(self) -> TrainerError:
        stderr = "\n".join(self._stderr)
        return TrainerError(f"{self._death}:\n{stderr}" if stderr else f"{self._death}", {"stderr": stderr})

    async def _keep_stderr(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self._stderr.append(line.decode(errors="replace").rstrip())


async def open_link(threads: int) -> Link:
    """Start a worker. It loads nothing until its first call, `setup`."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "muster.trainer.process.worker", str(theirs.fileno())),
            pass_fds=[theirs.fileno()],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # an interrupt at the terminal is the parent's to handle
            env={**os.environ, **_ENVIRONMENT, "OMP_NUM_THREADS": str(threads)},
        )
    reader, writer = await asyncio.open_connection(sock=ours)
    return Link(process, reader, writer)
