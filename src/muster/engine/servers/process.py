"""A server in a process of its own: started, listened to, and ended with us whatever happens.

    spawn ─► sh: a guard in the background, then exec ─► the server
                   │ our end of its standard input closes, because we were killed
                   └► SIGTERM for the whole process group, and soon SIGKILL

Law: the process, and every child that stays in its group, ends with the `async with`, or with this process if that is
killed; either way it has a moment to tidy up. What it writes is read all the time, so it never blocks on a full pipe;
the last lines are its last words, and all of them go to a log where one is given.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar

from muster import clock
from muster.errors import EngineError

_T = TypeVar("_T")

_LAST_LINES = 20
_LAST_WORDS_S = 2.0
_LOOK_S = 0.02
_GUARD = """exec 3<&0
{ trap '' TERM; while read -r _; do :; done; kill -TERM 0; sleep 5; kill -KILL 0; } <&3 3<&- >/dev/null 2>&1 &
exec "$@" 3<&-"""
"""Ends the group at the end of standard input: a server that is not ours does not look there by itself. The detour
over 3, because a shell gives what it starts in the background /dev/null for standard input."""


class ServerProcess:
    """A running child; `spawn` makes it."""

    def __init__(self, name: str, process: Process, log: TextIO) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._log = log
        self._ours = False  # we end it
        self._words: deque[str] = deque(maxlen=_LAST_LINES)
        self._line: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._readers = asyncio.gather(self._read_output(), self._read_errors())
        self._ending = asyncio.ensure_future(self._end())

    @property
    def last_output(self) -> str:
        return " | ".join(self._words) or "it said nothing"

    async def first_line(self, timeout_s: float) -> str:
        """The first line of its standard output. `EngineError` when it ends before, or takes longer."""
        return await self._before_it_ends(self._said(), timeout_s)

    async def ready_when(
        self, probe: Callable[[], Awaitable[bool]], timeout_s: float, *, every_s: float = 0.25
    ) -> None:
        """Ask `probe` until it says yes. `EngineError` when the process ends before, or takes longer.

        probe: answers False while nobody listens, within a deadline of its own.
        """
        await self._before_it_ends(_polled(probe, every_s), timeout_s)

    async def ended(self) -> str:
        """Waits until it has ended; says how, with its last words."""
        return await asyncio.shield(self._ending)

    def on_end(self, tell: Callable[[str], None]) -> None:
        """`tell` is called with its last words when it ends by itself; not when we end it."""
        self._ending.add_done_callback(lambda ending: self._ours or tell(ending.result()))

    async def end(self, grace_s: float = 0.0) -> None:
        """End it and its group. grace_s: given to it to end by itself, after SIGTERM. Idempotent."""
        self._ours = True
        if grace_s and not self._ending.done():
            with suppress(ProcessLookupError, TimeoutError):
                os.kill(self.pid, signal.SIGTERM)
                async with clock.timeout(grace_s):
                    await self.ended()
        self._kill()
        await self.ended()

    async def _said(self) -> str:
        return await asyncio.shield(self._line)

    async def _before_it_ends(self, readiness: Coroutine[Any, Any, _T], timeout_s: float) -> _T:
        task = asyncio.ensure_future(readiness)
        self._ending.add_done_callback(lambda _: task.cancel())
        us = asyncio.current_task()
        assert us is not None
        try:
            async with clock.timeout(timeout_s):
                return await task
        except TimeoutError:
            raise EngineError(f"{self.name}: not ready within {timeout_s:g} s: {self.last_output}") from None
        except asyncio.CancelledError:
            if us.cancelling() or not self._ending.done():
                raise
            raise EngineError(f"{self.name}: ended while starting: {self._ending.result()}") from None
        finally:
            task.cancel()

    async def _end(self) -> str:
        # not `wait`: it returns when the pipes are closed too, and the children of a killed server keep them open
        while (code := self._process.returncode) is None:
            await clock.sleep(_LOOK_S)
        self._kill()  # the guard, and whatever children it has left behind
        with suppress(TimeoutError):  # a child that left the group may keep the pipes
            async with clock.timeout(_LAST_WORDS_S):
                await asyncio.shield(self._readers)
        self._readers.cancel()
        return f"its process ended with {code}: {self.last_output}"

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        async for line in _lines(self._process.stdout):
            print(line, file=self._log)
            if self._line.done():
                self._words.append(line)
            else:
                self._line.set_result(line)

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        async for line in _lines(self._process.stderr):
            print(line, file=self._log)
            self._words.append(line)


@asynccontextmanager
async def spawn(
    command: Sequence[str],
    *,
    name: str,
    env: Mapping[str, str],
    grace_s: float = 0.0,
    cwd: Path | None = None,
    log: Path | None = None,
) -> AsyncGenerator[ServerProcess]:
    """Start `command` and yield it at once; wait for it with `first_line` or `ready_when`.

    env: all of its environment, a secret included: arguments are for everyone to read. grace_s: between SIGTERM and
    SIGKILL at the end. log: a file that everything it says is appended to.

    Example:
        async with spawn([sys.executable, "-m", "muster.engine.embedded.serve", ...], name="r0", env=env) as server:
            url = json.loads(await server.first_line(timeout_s=120))["url"]
            async with HttpReplica("r0", url) as replica:
                server.on_end(replica.mark_dead)
                ...
    """
    with _appended(log) as file:
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", _GUARD, "guard", *command,
            stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, cwd=cwd,
            process_group=0,  # an interrupt at the terminal is for us to handle
        )  # fmt: skip
        server = ServerProcess(name, process, file)
        try:
            yield server
        finally:
            await asyncio.shield(asyncio.ensure_future(server.end(grace_s)))


def _appended(log: Path | None) -> TextIO:
    """Written line by line: it is read while the server runs, and after it was killed."""
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    return (log or Path(os.devnull)).open("a", buffering=1)


async def _polled(probe: Callable[[], Awaitable[bool]], every_s: float) -> None:
    while not await probe():
        await clock.sleep(every_s)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines however long: what exceeds the reader's limit is cut, never an error."""
    while True:
        try:
            raw = await stream.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            raw = await stream.readexactly(error.consumed)
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return
            raw = error.partial
        yield raw.decode(errors="replace").rstrip()
