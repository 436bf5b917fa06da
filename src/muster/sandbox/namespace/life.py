"""The processes of a sandbox from one start to its end: PID 1, its sessions, the image's service.

    start ─► PID 1 ─► service (in the background) ─► shell "main" ─► its state ─► service healthy?
    session(name) ─► the shell of that name, started at its first use and again after its end
    recover ─► after an interrupt: what the command started is killed; what lived before, other sessions and the
               service are spared

Law: a life ends whole (`kill`) or by itself, and is never mended; `instance` starts another over the same files.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from muster import clock
from muster.errors import SandboxStartError
from muster.sandbox.files import read_inside
from muster.sandbox.namespace.isolation.accounts import Account, resolve
from muster.sandbox.namespace.isolation.terminals import limit_terminals
from muster.sandbox.namespace.processes.service import RunningService
from muster.sandbox.namespace.processes.session import TerminalShell
from muster.sandbox.namespace.processes.supervisor import Exit, Supervisor
from muster.sandbox.namespace.processes.tap import Tap
from muster.sandbox.namespace.processes.tree import descendants, is_ending
from muster.sandbox.namespace.quiescence import holds_nothing
from muster.sandbox.port import MAIN, Snapshot
from muster.sandbox.shell_state import capture, captured, restore, restored

_CAPTURE = capture("builtin printf '\\0'")
_PROBE = "\0probe"
_SETTLE_S = (0.0, 0.002, 0.01, 0.05)  # a shell answers a moment before it has tidied up behind its command
_NAMES_BYTES = 1 << 20  # of /etc/passwd and /etc/group


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """Parameters that a life is started from."""

    argv: list[str]
    seccomp: Path
    groups: tuple[Path, ...]
    snapshot: Snapshot
    file_size_bytes: int | None
    output_cap_bytes: int
    timeout_s: float
    grace_s: float
    began: Callable[[int], Awaitable[None]]
    """Called with PID 1, before anything that a model wrote runs."""


class Life:
    """Processes of a sandbox from one start to its end. Made by `start`."""

    def __init__(self, birth: Birth, supervisor: Supervisor) -> None:
        self.snapshot = birth.snapshot
        """As given; without shell state if no shell survives it."""
        self.supervisor = supervisor
        self._birth = birth
        self._user: str | None = None
        self._greeting = ""
        self._sessions: dict[str, TerminalShell] = {}
        self._taps: dict[str, Tap] = {}
        self._service: RunningService | None = None

    @classmethod
    async def start(cls, birth: Birth, *, service_required: bool) -> Life:
        """Raises `SandboxStartError`; with `service_required` also for a required service that is not healthy."""
        supervisor = await Supervisor.start(
            birth.argv, seccomp=birth.seccomp, groups=birth.groups, timeout_s=birth.timeout_s
        )
        life = cls(birth, supervisor)
        try:
            if birth.file_size_bytes is not None:
                supervisor.limit_file_size(birth.file_size_bytes)
            limit_terminals(supervisor.root)
            await birth.began(supervisor.init_pid)
            account = life._account(birth.snapshot.user)
            life._user, life._greeting = account.spec, life._introduction(account)
            service = birth.snapshot.service
            if service is not None:
                account = life._account(service.user)
                life._service = await RunningService.launch(
                    service, supervisor, user=account.spec, greeting=life._introduction(account)
                )
            await life.session(MAIN)
            if service is not None:
                await life._serve(required=service.required and service_required)
        except BaseException:
            life.kill()
            life.release()
            raise
        return life

    @property
    def alive(self) -> bool:
        return self.supervisor.alive

    @property
    def ending(self) -> bool:
        """Ended, or about to: its processes die one after the other."""
        return not self.alive or is_ending(self.supervisor.init_pid)

    @property
    def exited(self) -> asyncio.Future[Exit]:
        return self.supervisor.exited

    async def session(self, name: str) -> tuple[TerminalShell, bool]:
        """The shell of that name, and whether it had to be started anew. Raises `SandboxStartError`."""
        before = self._sessions.get(name)
        if before is not None and before.alive:
            return before, False
        if before is not None:
            before.close()
        session = await self._shell(name)
        if name == MAIN and self.snapshot.shell_state:
            session = await self._restore(session)
        self._sessions[name] = session
        return session, before is not None

    async def capture(self, session: TerminalShell) -> str:
        """Shell state as bash source."""
        return await captured(session.begin(_CAPTURE))

    def processes(self) -> frozenset[int]:
        """Host process ids of everything but PID 1."""
        return frozenset(descendants([self.supervisor.init_pid]))

    async def at_rest(self) -> bool:
        """Whether another life over the same files and shell state would be the same to the agent, and can be started.

        A service never rests: what it holds in memory is part of the sandbox.
        """
        main = self._sessions[MAIN].child.pid
        if self._service is not None or main is None:
            return False
        for pause_s in _SETTLE_S:
            await clock.sleep(pause_s)
            if self.processes() <= {main} and holds_nothing(self.supervisor.root, main):
                break
        else:
            return False
        try:
            (await self._shell(_PROBE)).end()
        except SandboxStartError:  # it lives on in the shell that it has
            return False
        return True

    async def recover(self, session: TerminalShell) -> bool:
        """After `session.interrupt()`: kill all but what is spared. False: the shell does not come back."""

        shells = {other.child.pid for other in self._sessions.values() if other is not session}
        service = self._service.pid if self._service is not None else None

        def victims() -> set[int]:
            kept = {pid for pid in (*shells, service, *session.spare) if pid is not None} - {session.child.pid}
            return set(self.processes()) - kept - descendants(kept) - {session.child.pid}

        return await session.recover(victims, self._birth.grace_s)

    def kill(self) -> None:
        """All of it. Does not wait; `exited` tells."""
        self.supervisor.kill()

    def release(self) -> None:
        """Give back the descriptors. Take what was written before."""
        for session in self._sessions.values():
            session.close()
        for tap in self._taps.values():
            tap.close()
        if self._service is not None:
            self._service.close()

    # --- starting ---------------------------------------------------------------------------------------

    def _account(self, user: str) -> Account:
        if not user:
            return Account()
        account = resolve(user, passwd=self._text("/etc/passwd"), group=self._text("/etc/group"))
        if account.spec is not None and os.geteuid() != 0:
            raise SandboxStartError(
                f"the image's user {user!r} needs Muster to run as root: an ordinary user has one user number to give, "
                "which is root in the sandbox"
            )
        return account

    def _text(self, path: str) -> str:
        try:
            return read_inside(self.supervisor.root, path, limit_bytes=_NAMES_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def _introduction(self, account: Account) -> str:
        """First input of a shell of that account. What the image's ENV sets stays, as with Docker."""
        told: Mapping[str, str] = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name}
        exports = " ".join(f"{k}={shlex.quote(v)}" for k, v in told.items() if k not in self.snapshot.env)
        workdir = shlex.quote(self.snapshot.workdir)
        return f"builtin export {exports}; builtin cd -- {workdir} || builtin cd /"

    async def _shell(self, name: str) -> TerminalShell:
        if name not in self._taps:
            self._taps[name] = Tap(self._birth.output_cap_bytes)
        return await TerminalShell.start(
            self.supervisor,
            user=self._user,
            greeting=self._greeting,
            tap=self._taps[name],
            timeout_s=self._birth.timeout_s,
        )

    async def _restore(self, session: TerminalShell) -> TerminalShell:
        """A state on which the shell ends or hangs (a model can make one) is left out."""
        if await restored(session.begin(restore(self.snapshot.shell_state))):
            return session
        session.end()
        self.snapshot = replace(self.snapshot, shell_state="")
        return await self._shell(MAIN)

    async def _serve(self, *, required: bool) -> None:
        assert self._service is not None
        asker = await self._shell("\0health")
        try:
            await self._service.wait_healthy(asker, required=required)
        finally:
            asker.end()
