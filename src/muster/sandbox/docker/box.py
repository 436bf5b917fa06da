"""One container with its supervisor: what a sandbox runs in, and what may be done to it from outside.

    create ─► start ─► attach: the supervisor answers ─► session … session │ order(script)
                                                         kill ─► start again, over the same files

Law: it judges nothing. Raises `SandboxStartError` from what starts something, `SandboxError` from all else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from muster import clock
from muster.errors import SandboxError, SandboxStartError
from muster.sandbox.command import Answer
from muster.sandbox.docker import scripts
from muster.sandbox.docker.container import Container, create, exec_env
from muster.sandbox.docker.daemon import Client, Daemon
from muster.sandbox.docker.meter import Gauge
from muster.sandbox.docker.shell import Shell
from muster.sandbox.docker.stream import Stream
from muster.sandbox.output import HeadTail

T = TypeVar("T")

ORDER_TIMEOUT_S = 5.0
_SETTLE_S = (0.0, 0.01, 0.05)  # a shell answers a moment before it has tidied up behind its command
_PID = re.compile(rb"\d+$")  # the dynamic linker may have complained before
_ATTACH = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShell:
    """A shell of a user, and the daemon's name for its process."""

    shell: Shell
    exec_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A program that runs beside the sessions: a service. `said`: what it wrote, head and tail."""

    pid: int
    exec_id: str
    stream: Stream
    said: HeadTail


class Box:
    """A container with its supervisor. Made by `Box.create`, stopped; `start` may be called again after `kill`."""

    def __init__(self, daemon: Daemon, container: str, env: dict[str, str], start_timeout_s: float) -> None:
        self._daemon = daemon
        self.container = container
        self._env = env
        self._start_timeout_s = start_timeout_s
        self._ordering = asyncio.Lock()
        self._supervisor: Shell | None = None
        self.gauge = Gauge()

    @classmethod
    async def create(cls, daemon: Daemon, it: Container, *, start_timeout_s: float) -> Box:
        try:
            container = await daemon.call("create", lambda api: create(api, it))
        except SandboxError as error:
            raise SandboxStartError(str(error), error.evidence) from None
        return cls(daemon, container, dict(it.env), start_timeout_s)

    async def start(self) -> None:
        try:
            await self.call("start", lambda api: api.start(self.container))
            stream = await self._daemon.open("attach", lambda api: api.attach_socket(self.container, _ATTACH))
            self._supervisor = await self._greet(Shell(stream), 'builtin printf "%d" $$ >&43')
            self.gauge.started(self.container, *await self.call("inspect", self._place))
        except SandboxStartError:
            raise
        except SandboxError as error:
            raise SandboxStartError(str(error), error.evidence) from None

    @property
    def up(self) -> bool:
        """Whether the supervisor's stream is open; it ends with the container."""
        return self._supervisor is not None and self._supervisor.alive

    async def session(self, *, workdir: str, user: str) -> OpenShell:
        """A fresh shell that answers."""
        exec_id, stream = await self._execute(scripts.session(workdir), user)
        shell = await self._greet(Shell(stream), f'{scripts.PREPARE}; builtin printf "%d" $$ >&43')
        return OpenShell(shell=shell, exec_id=exec_id)

    async def spawn(self, command: tuple[str, ...], *, user: str, output_cap_bytes: int) -> Process:
        """Start a program of the image in the background."""
        exec_id, stream = await self._execute(scripts.service(command), user)
        said = HeadTail(output_cap_bytes)
        number: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        first = bytearray()

        def on_frame(_: int, data: bytes) -> None:
            if number.done():
                said.add(data)
                return
            first.extend(data)
            line, end, rest = bytes(first).partition(b"\n")
            if end:
                number.set_result(int(line) if line.isdigit() else 0)
                said.add(rest)

        stream.on_frame = on_frame
        stream.ended.add_done_callback(lambda _: number.done() or number.set_result(0))
        stream.send(b"\n")
        try:
            async with clock.timeout(self._start_timeout_s):
                pid = await number
        except TimeoutError:
            stream.close()
            raise SandboxStartError(f"{command[0]} did not start in {self._start_timeout_s:g} s") from None
        return Process(pid=pid, exec_id=exec_id, stream=stream, said=said)

    async def exit_code(self, exec_id: str) -> int | None:
        """Of a session or program that ended; None while it runs, as far as the daemon knows."""
        for _ in range(20):  # the stream may end a moment before the daemon knows why
            state: dict[str, Any] = await self.call("inspect exec", lambda api: api.exec_inspect(exec_id))
            if not state["Running"]:
                return state["ExitCode"]
            await clock.sleep(0.01)
        return None

    async def order(self, script: str) -> bool:
        """Have the supervisor run bash source. False if it does not answer in time."""
        return await self._order(script) is not None

    async def _order(self, script: str) -> Answer | None:
        async with self._ordering:
            if self._supervisor is None:
                return None
            with suppress(TimeoutError):
                async with clock.timeout(ORDER_TIMEOUT_S):
                    while not self._supervisor.answer.done():  # an order that nobody waits for
                        await asyncio.shield(self._supervisor.answer)
                    return await asyncio.shield(self._supervisor.begin(script))
            return None

    async def has(self, pid: int) -> bool:
        """Whether a process lives. True when nobody can tell."""
        answer = await self._order(f"kill -0 {pid}")
        return answer is None or answer.exit_code == 0

    async def at_rest(self, shell: int) -> bool:
        """Whether nothing is there but the supervisor and that shell, and neither holds anything in memory alone."""
        for pause_s in _SETTLE_S:
            await clock.sleep(pause_s)
            answer = await self._order(scripts.at_rest(shell))
            if answer is not None and answer.exit_code == 0:
                return True
        return False

    def order_nowait(self, script: str) -> None:
        """The same without an answer; it is done when the supervisor is free."""
        if self._supervisor is None:
            return
        if self._supervisor.answer.done():
            self._supervisor.begin(script)
        else:
            self._supervisor.answer.add_done_callback(lambda _: self.order_nowait(script))

    async def kill(self) -> None:
        """End every process of the container and wait until they are dead."""
        with suppress(SandboxError):  # it has ended by itself: the wait tells
            await self.call("kill", lambda api: api.kill(self.container))
        await self.call("wait", lambda api: api.wait(self.container))
        self.detach()

    async def settle(self) -> None:
        """The supervisor does not answer: give the daemon a moment to see that the container has ended."""
        with suppress(SandboxError):
            for _ in range(100):
                if not (await self.state())["Running"]:
                    return
                await clock.sleep(0.02)

    def detach(self) -> None:
        if self._supervisor is not None:
            self._supervisor.close()

    async def state(self) -> dict[str, Any]:
        """As the daemon says it: Running, ExitCode, OOMKilled. Raises `Missing` when it was removed."""
        found: dict[str, Any] = await self.call("inspect", lambda api: api.inspect_container(self.container))
        return found["State"]

    async def call(self, what: str, function: Callable[[Client], T]) -> T:
        return await self._daemon.call(what, function)

    async def _execute(self, command: tuple[str, ...], user: str) -> tuple[str, Stream]:
        def prepare(api: Client) -> str:
            made: dict[str, Any] = api.exec_create(
                self.container, list(command), stdin=True, user=user, environment=exec_env(user) | self._env
            )
            return made["Id"]

        try:
            exec_id = await self.call("exec create", prepare)
            return exec_id, await self._daemon.open("exec", lambda api: api.exec_start(exec_id, socket=True))
        except SandboxError as error:
            raise SandboxStartError(str(error), error.evidence) from None

    async def _greet(self, shell: Shell, script: str) -> Shell:
        """Wait until the shell answers; `script` says its process id."""
        try:
            async with clock.timeout(self._start_timeout_s):
                answer = await shell.begin(script)
        except TimeoutError:
            shell.close()
            raise SandboxStartError(f"bash did not answer in {self._start_timeout_s:g} s") from None
        except asyncio.CancelledError:
            shell.close()
            raise
        number = _PID.search(answer.payload) if answer is not None else None
        if number is None:
            shell.close()
            raise SandboxStartError("bash does not start in this container", {"said": shell.last_words()})
        shell.pid = int(number[0])
        return shell

    def _place(self, api: Client) -> tuple[int, str]:
        """The number of PID 1 and the writable layer, on the daemon's machine."""
        found: dict[str, Any] = api.inspect_container(self.container)
        layers: dict[str, str] = found["GraphDriver"]["Data"] or {}  # none with some storage drivers
        return found["State"]["Pid"], layers.get("UpperDir", "")
