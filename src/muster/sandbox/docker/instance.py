"""One sandbox in a container: its sessions, its limits, and who ended it when it ends.

    run:       session ─► command ─► answer │ time-out, silence, disk: interrupt its processes, else a new shell
    snapshot:  capture shell state ─► kill all ─► commit ─► start again over the same files
    close:     streams closed, counted; the container is killed and removed in the background

Law: the container outlives its shells. A shell that ended by the model's doing is started again in the same files; only
an end of the container itself, or files in which no shell starts, lose the sandbox. `ending` says by whom.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from muster import clock
from muster.errors import SandboxError, SandboxLost, SandboxStartError
from muster.sandbox.command import Answer, Stop, answered, result, within
from muster.sandbox.config import SandboxConfig
from muster.sandbox.docker import files, scripts
from muster.sandbox.docker.box import Box, OpenShell, Process
from muster.sandbox.docker.daemon import Daemon, Missing
from muster.sandbox.docker.ending import by_agent
from muster.sandbox.docker.labels import KEPT_IN
from muster.sandbox.docker.shell import Shell
from muster.sandbox.files import usage_bytes
from muster.sandbox.health import wait_healthy
from muster.sandbox.kept import KeptStates
from muster.sandbox.output import HeadTail
from muster.sandbox.port import MAIN, Counters, Result, Service, Snapshot
from muster.sandbox.shell_state import captured, restore, restored
from muster.sandbox.watch import DiskWatch
from muster.types import Limits

T = TypeVar("T")

_KILL_ROUNDS = 5  # a loop in the shell starts the next process as soon as one is killed
_TRANSPORT_S = 0.25  # an answer comes through the daemon, which may be busy
_LOOK_S = (0.05, 2.0)  # between two looks at whether the shell still lives: at first, at most
_HEALTH = "\0health"  # the session of a service's health check


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonHost:
    """Parts that all sandboxes of the backend share. `starts`: whether a fresh container of a snapshot answers."""

    config: SandboxConfig
    daemon: Daemon
    kept: KeptStates
    starts: Callable[[Snapshot], Awaitable[bool]]
    discard: Callable[[str], None]
    retire: Callable[[DockerSandbox], None]


class DockerSandbox:
    """Implements `sandbox.port.Sandbox`. Made by `DockerBackend.fork`; used by one caller at a time."""

    def __init__(self, host: DaemonHost, box: Box, *, id: str, snapshot: Snapshot, limits: Limits) -> None:
        self.id = id
        self.box = box
        self._host = host
        self._origin = snapshot
        self._limits = limits
        self._sessions: dict[str, OpenShell] = {}
        self._interrupted: set[str] = set()  # sessions whose command was cancelled and may still run
        self._service: Process | None = None
        self._disk: DiskWatch | None = None  # where the writable layer is on this machine
        self._lost: SandboxLost | None = None
        self._counters: Counters | None = None

    # --- the port -------------------------------------------------------------------------------------

    async def run(
        self, command: str, timeout_s: float, *, silence_s: float | None = None, session: str = MAIN
    ) -> Result:
        started = clock.now()
        shell, restarted = await self._shell(session)
        sink = HeadTail(self._host.config.output_cap_bytes)
        reading = self.box.gauge.begin()
        answer = shell.run(command, sink)
        try:
            pause_s, look = partial(next, self._pauses()), partial(self._look, shell)
            stop = await answered(answer, timeout_s, silence_s, lambda: shell.heard_at, look_s=pause_s, look=look)
            if stop is not None:
                await self._interrupt(session, shell, answer)
        except asyncio.CancelledError:
            self._interrupted.add(session)
            self.box.gauge.end(reading, disk_bytes=None)
            self.box.order_nowait(self._signal("INT", session))
            raise
        heard = answer.result() if answer.done() else None
        shell.give_up()
        duration_s = clock.now() - started
        used = self.box.gauge.end(reading, disk_bytes=self._disk_level())
        code = heard.exit_code if heard is not None else None
        if heard is None:
            code = await self._ended(session)
            if used.oom_kills and code:  # the memory limit's, not its own
                code = None
            restarted = True
        if stop is None and self._disk is not None:
            stop = await self._disk.ran(duration_s)
        if stop is Stop.HOST_DISK:  # the janitor removes it, and what it wrote
            floor = self._host.config.free_disk_bytes
            raise self._lose("this host runs out of disk", by_agent=False, free_disk_bytes=floor)
        return result(
            sink,
            exit_code=None if stop is not None else code,
            stop=stop,
            disk_message=self._disk.message if self._disk is not None else "",
            duration_s=duration_s,
            shell_restarted=restarted,
            counters=replace(used, disk_bytes=self._disk_level()),  # it may have been measured since
        )

    async def read(self, path: str) -> bytes:
        self._require_open()
        return await self._call("read", lambda api: files.read(api, self.box.container, path))

    async def write(self, path: str, data: bytes) -> None:
        self._require_open()
        await self._call("write", lambda api: files.write(api, self.box.container, path, data))

    async def snapshot(self) -> Snapshot:
        state = await self._capture()
        image = await self.freeze()
        before, self._origin = self._origin, replace(self._origin, id=image, shell_state=state)
        frozen = self._origin
        try:
            await self.start()
        except SandboxStartError as error:  # the snapshot is good all the same: it says what the agent left
            healthy = await self._host.starts(before)
            self._lose("does not start in its files any more", by_agent=healthy, reason=str(error))
        return frozen

    async def keep(self) -> Snapshot | None:
        """Nothing is killed for it: the daemon pauses the container while it commits."""
        shell, _ = await self._shell(MAIN)
        if self._service is not None or len(self._sessions) > 1 or not await self.box.at_rest(shell.pid):
            return None
        state, label = await self._capture(), f'LABEL {KEPT_IN}="{self._host.kept.directory}"'
        kept = replace(self._origin, id=await self._commit(changes=[label]), shell_state=state)
        if self._host.kept.add(kept):
            return kept
        self._host.discard(kept.id)
        return None

    async def alive(self) -> bool:
        if self._lost is not None or self._counters is not None or not self.box.up:
            return False
        return await self.box.order(":")

    async def close(self) -> Counters:
        if self._counters is None:
            self._counters = self.box.gauge.life(disk_bytes=self._disk_level())
            self._drop_streams()
            self._host.retire(self)
        return self._counters

    # --- coming and going -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the container, its service and its main session. Raises `SandboxStartError`."""
        await self.box.start()
        self._disk = self._watch_upper()
        if self._origin.service is not None:
            await self._serve(self._origin.service)
        await self._open(MAIN)

    async def _serve(self, service: Service) -> None:
        cap_bytes = self._host.config.output_cap_bytes
        process = self._service = await self.box.spawn(service.command, user=service.user, output_cap_bytes=cap_bytes)

        async def exit_code() -> int | None:
            return None if process.stream.open else await self.box.exit_code(process.exec_id)

        await wait_healthy(
            service, required=service.required, ask=self._probe, exit_code=exit_code, said=process.said.text
        )

    async def freeze(self, **options: Any) -> str:
        """Kill every process and commit the files. Returns the image's id; `options` are those of `commit`."""
        self.box.gauge.life()  # seen a last time
        self._drop_streams()
        self._service = None
        try:
            await self.box.kill()
        except SandboxError as error:
            raise await self._blame(error) from error
        return await self._commit(**options)

    async def _commit(self, **options: Any) -> str:
        made: dict[str, Any] = await self._call("commit", lambda api: api.commit(self.box.container, **options))
        return "sha256:" + str(made["Id"]).removeprefix("sha256:")

    def _drop_streams(self) -> None:
        for session in self._sessions.values():
            session.shell.close()
        self._sessions.clear()
        self._interrupted.clear()
        if self._service is not None:
            self._service.stream.close()
        self.box.detach()

    async def _shell(self, name: str) -> tuple[Shell, bool]:
        """A shell that answers, and whether it had to be started anew because the last one had ended."""
        self._require_open()
        session = self._sessions.get(name)
        if session is not None and name in self._interrupted:
            await self._interrupt(name, session.shell, session.shell.answer)
        if session is not None and session.shell.alive:
            return session.shell, False
        if session is not None:
            await self._ended(name)
        return await self._reopen(name), session is not None

    async def _open(self, name: str) -> Shell:
        service = self._origin.service
        user = service.user if name == _HEALTH and service is not None else self._origin.user
        session = await self.box.session(workdir=self._origin.workdir, user=user)
        state = self._origin.shell_state if name == MAIN else ""
        if state and not await restored(session.shell.begin(restore(state))):
            # a state on which the shell ends or hangs (a model can make one) is left out
            await self.box.order(scripts.kill_shell(session.shell.pid))
            session.shell.close()
            self._origin = replace(self._origin, shell_state="")
            session = await self.box.session(workdir=self._origin.workdir, user=self._origin.user)
        self._sessions[name] = session
        return session.shell

    async def _reopen(self, name: str) -> Shell:
        """A new shell in the same files: perhaps after killing what leaves no room for one."""
        try:
            return await self._open(name)
        except SandboxStartError:
            await self._require_running()
            await self.box.order(scripts.kill("KILL", scripts.Moment(), spared=self._others(name)))
        try:
            return await self._open(name)
        except SandboxStartError as error:
            # the same machinery started on these layers before; does it still, without this one's writes?
            healthy = await self._host.starts(self._origin)
            raise self._lose("no shell starts in its files any more", by_agent=healthy, reason=str(error)) from error

    async def _ended(self, name: str) -> int | None:
        """The shell of a session ended: its exit code. Raises `SandboxLost` if it was the whole container."""
        session = self._sessions.pop(name)
        self._interrupted.discard(name)
        if not await self.box.order(":"):  # the container ends as well, and the daemon may not know yet
            await self.box.settle()
        await self._require_running()
        with suppress(SandboxError):
            return await self.box.exit_code(session.exec_id)
        return None

    def _require_open(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._counters is not None:
            raise SandboxError(f"{self.id} is closed")

    async def _require_running(self) -> None:
        """Raises `SandboxLost` with its evidence when the container has ended, or the daemon does not answer."""
        try:
            state = await self.box.state()
        except SandboxError as error:
            raise await self._blame(error) from error
        if not state["Running"]:
            raise await self._blame(None)

    async def _blame(self, error: SandboxError | None) -> SandboxLost:
        """Attribute the end, from what the daemon still knows."""
        try:
            state = await self.box.state()
        except Missing:
            return self._lose("its container was removed from outside", by_agent=False)
        except SandboxError as gone:
            return self._lose("the daemon does not answer", by_agent=False, daemon=str(gone))
        if state["Running"]:
            return self._lose("a call of the daemon failed", by_agent=False, daemon=str(error))
        guilty = by_agent(state, oom_kills_before=self.box.gauge.life().oom_kills or 0)
        kept = {k: state[k] for k in ("ExitCode", "OOMKilled", "Error")}
        return self._lose("its container ended", by_agent=guilty, **kept)

    def _lose(self, message: str, *, by_agent: bool, **evidence: object) -> SandboxLost:
        counts = self.box.gauge.life()
        evidence |= {"oom_kills": counts.oom_kills, "pids_refused": counts.pids_refused}
        self._lost = SandboxLost(f"{self.id}: {message}", by_agent=by_agent, evidence=evidence)
        return self._lost

    async def _call(self, what: str, function: Callable[[Any], T]) -> T:
        """A call of the daemon for the port: the sandbox is lost when it fails. `OSError` is the caller's."""
        try:
            return await self.box.call(what, function)
        except SandboxError as error:
            raise await self._blame(error) from error

    # --- commands ---------------------------------------------------------------------------------------

    def _pauses(self) -> Iterator[float]:
        """Seconds from one look to the next."""
        pause_s, longest_s = _LOOK_S
        while True:
            yield pause_s
            poll_s = self._disk.poll_s() if self._disk is not None else None
            pause_s = min(2 * pause_s, poll_s or longest_s)

    async def _look(self, shell: Shell) -> Stop | None:
        """While a command runs: whether its shell still lives, and its disk is not full."""
        if not await self.box.has(shell.pid):  # a background process may hold its stream open
            shell.close()
            return None
        return await self._disk.look() if self._disk is not None else None

    async def _interrupt(self, name: str, shell: Shell, answer: asyncio.Future[Answer | None]) -> None:
        """End the command of a session: as Ctrl-C would, then by force; at last its shell."""
        told = name in self._interrupted
        self._interrupted.discard(name)
        grace_s = max(self._host.config.kill_grace_s, _TRANSPORT_S)
        for number in range(1 + _KILL_ROUNDS):
            if await within(asyncio.shield(answer), 0):
                return
            # not twice: a second one could meet the shell as it reads what comes next
            if number or not told:
                await self.box.order(self._signal("KILL" if number else "INT", name))
            if await within(asyncio.shield(answer), max(grace_s / _KILL_ROUNDS, _TRANSPORT_S) if number else grace_s):
                return
        await self.box.order(scripts.kill_shell(shell.pid))
        shell.close()

    def _signal(self, signal: str, name: str) -> str:
        """For the supervisor: signal the command of a session, and move its shell on."""
        shell = self._sessions[name].shell
        if shell.begun is None:  # nothing of it runs yet
            return scripts.kill_shell(shell.pid, "INT")
        return scripts.kill(signal, shell.begun, shell=shell.pid, spared=self._others(name))

    def _others(self, name: str) -> list[int]:
        """Process ids whose sessions and descendants are nobody's business here."""
        pids = [s.shell.pid for other, s in self._sessions.items() if other != name]
        return [*pids, self._service.pid] if self._service is not None else pids

    async def _probe(self, command: str, timeout_s: float) -> tuple[int | None, str]:
        """One question of a health check, in a shell of its own."""
        shell, _ = await self._shell(_HEALTH)
        sink = HeadTail(self._host.config.output_cap_bytes)
        answer = shell.run(command, sink)
        if not await within(asyncio.shield(answer), timeout_s):
            await self._interrupt(_HEALTH, shell, answer)
            return None, sink.text()
        heard = answer.result()
        return (heard.exit_code if heard is not None else None), sink.text()

    async def _capture(self) -> str:
        """Shell state as bash source."""
        shell, _ = await self._shell(MAIN)
        return await captured(shell.begin(scripts.CAPTURE))

    # --- limits and counters ----------------------------------------------------------------------------

    def _watch_upper(self) -> DiskWatch | None:
        """Of what the sandbox may write, where that can be seen from here."""
        upper = self.box.gauge.upper
        if upper is None:
            return None
        return DiskWatch(
            lambda stop_at: asyncio.to_thread(usage_bytes, upper, stop_at=stop_at),
            limit_bytes=self._limits.disk_bytes,
            host_directory=upper,
            free_disk_bytes=self._host.config.free_disk_bytes,
        )

    def _disk_level(self) -> int | None:
        return self._disk.used_bytes if self._disk is not None else None
