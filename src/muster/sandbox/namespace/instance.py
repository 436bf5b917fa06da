"""One namespace sandbox: its files, its limits, and the processes that come and go over them.

    run: session answers | time-out, silence, disk ─► Ctrl-C ─► kill the command's processes ─► else a new shell
         the shell ended ─► a new shell in the same life ─► else a new life ─► else `SandboxLost`

Law: the files outlive the processes. A shell or a life that ended by the model's doing is started again over the
same writable layer; only an end from outside, or files on which no shell can start, lose the sandbox. See
`namespace` for the flow, `life` for the processes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from muster import clock
from muster.errors import SandboxError, SandboxLost, SandboxStartError
from muster.sandbox.cgroup import Cgroups
from muster.sandbox.command import Stop, answered, result, within
from muster.sandbox.config import SandboxConfig
from muster.sandbox.egress.door import Egress, Gate
from muster.sandbox.egress.report import EgressReport
from muster.sandbox.files import read_inside, write_inside
from muster.sandbox.kept import KeptStates
from muster.sandbox.meter import Meter
from muster.sandbox.namespace.devices import DeviceNodes
from muster.sandbox.namespace.ending import from_outside
from muster.sandbox.namespace.isolation import bubblewrap
from muster.sandbox.namespace.isolation.restraint import restrain
from muster.sandbox.namespace.isolation.view import Views
from muster.sandbox.namespace.janitor import Retired
from muster.sandbox.namespace.life import Birth, Life
from muster.sandbox.namespace.processes import supervisor
from muster.sandbox.namespace.processes.session import TerminalShell
from muster.sandbox.namespace.storage.quota import Quota, writable_bytes
from muster.sandbox.namespace.storage.squash import shortened
from muster.sandbox.namespace.storage.state import RunDirectory
from muster.sandbox.port import MAIN, Counters, Mount, Result, Snapshot
from muster.sandbox.watch import DiskWatch
from muster.types import Limits

_CLOSE_WAIT_S = 0.005
_END_WAIT_S = 10.0  # for PID 1 to tell an exit code, or the kernel to bury a killed sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Parts that all sandboxes of a backend share."""

    config: SandboxConfig
    cgroups: Cgroups
    run: RunDirectory
    kept: KeptStates
    seccomp: Path
    image_layers: Path
    egress: Egress
    retire: Callable[[NamespaceSandbox, Retired], None]
    release: Callable[[tuple[Path, ...]], None]
    views: Views
    devices: DeviceNodes


class NamespaceSandbox:
    """Implements `sandbox.port.Sandbox`. Made by `NamespaceBackend.fork`; one caller at a time for each session.

    `writable_usr` gives image builds a writable layer over a host-derived /usr as well; see `harvest`. With a `quota`
    the writable layers end exactly at the disk limit; those of image builds, which are moved away, have none.
    """

    def __init__(
        self,
        host: Host,
        *,
        id: str,
        snapshot: Snapshot,
        limits: Limits,
        mounts: tuple[Mount, ...] = (),
        toolchain: Snapshot | None = None,
        writable_usr: bool = False,
        quota: Quota | None = None,
    ) -> None:
        self.id = id
        self._host = host
        self._origin = snapshot
        self._limits = limits
        self._mounts = mounts
        self._toolchain = toolchain
        self._writable_usr = writable_usr
        self._quota = quota
        self._gate = Gate(host.egress, limits.egress)
        self._borrowed = toolchain.layers if toolchain is not None else ()
        host.run.hold((*snapshot.layers, *self._borrowed))
        self._upper = host.run.new_layer()
        self._disk = self._watch_upper()
        self._devices = host.devices.take()
        self._cgroup = host.cgroups.create(host.run.name, self._upper.root.name, limits)
        self._meter = Meter(self._cgroup)
        self._life: Life | None = None
        self._waking = asyncio.Lock()  # sessions of one sandbox may find it dead at once
        self._oom_kills = 0
        self._cpu_s = 0.0
        self._lost: SandboxLost | None = None
        self._counters: Counters | None = None

    # --- the port -------------------------------------------------------------------------------------

    async def run(
        self, command: str, timeout_s: float, *, silence_s: float | None = None, session: str = MAIN
    ) -> Result:
        life, shell, restarted = await self._ready(session)
        started = clock.now()
        shell.spare = life.processes()
        reading = self._meter.begin()
        try:
            answer = shell.run(command)
            stop = await answered(
                answer, timeout_s, silence_s, lambda: shell.tap.last_s, look_s=self._disk.poll_s, look=self._disk.look
            )
            heard = answer.result() if stop is None else None
            if stop is not None:
                shell.interrupt()
                if stop.of_disk:
                    shell.spare = frozenset()
                if not await life.recover(shell):
                    shell.end()
        except asyncio.CancelledError:
            shell.interrupt()  # and whatever does not heed it is killed before the session's next command
            self._meter.end(reading, disk_bytes=None)
            raise
        duration_s = clock.now() - started
        sink = shell.take()
        counters = self._meter.end(reading, disk_bytes=self._disk.used_bytes)
        exit_code = heard.exit_code if heard is not None else None
        if not shell.alive:
            if stop is None and not counters.oom_kills:
                exit_code = await self._exit_code(life, shell)
            await self._ready(session)
            restarted = True
        self._new_oom_kills()  # seen: they explain no later end
        if stop is None:
            stop = await self._disk.ran(duration_s)
        if stop is Stop.HOST_DISK:
            await self._end_life()
            floor = self._host.config.free_disk_bytes
            raise self._lose("this host runs out of disk", by_agent=False, free_disk_bytes=floor)
        return result(
            sink,
            exit_code=exit_code,
            stop=stop,
            disk_message=self._disk.message,
            duration_s=duration_s,
            shell_restarted=restarted,
            counters=counters,
        )

    async def read(self, path: str) -> bytes:
        life, _, _ = await self._ready(MAIN)
        try:
            return await asyncio.to_thread(read_inside, life.supervisor.root, path)
        except NotADirectoryError as error:
            raise FileNotFoundError(*error.args) from None

    async def write(self, path: str, data: bytes) -> None:
        life, _, _ = await self._ready(MAIN)
        await asyncio.to_thread(write_inside, life.supervisor.root, path, data)

    async def snapshot(self) -> Snapshot:
        life, main, _ = await self._ready(MAIN)
        return await self._freeze(life, main)

    async def keep(self) -> Snapshot | None:
        """None also with an exact quota: its file systems are not mounted again by another process."""
        life, main, _ = await self._ready(MAIN)
        if self._quota is not None or self._mounts or not await life.at_rest():
            return None
        frozen = await self._freeze(life, main)
        # no number of ours comes twice, but a process id does: another run's state must never answer to this name
        kept = replace(frozen, id=f"{frozen.id}-{secrets.token_hex(4)}")
        if self._host.kept.add(kept):
            return kept
        self._host.release(frozen.layers)
        return None

    async def _freeze(self, life: Life, main: TerminalShell) -> Snapshot:
        state = await life.capture(main)
        await self._end_life()
        frozen = self._upper
        snapshot = replace(
            self._origin,
            id=f"{self._host.run.name}/{frozen.root.name}",
            layers=await shortened((*self._origin.layers, frozen.fs), self._host.run, self._host.release),
            shell_state=state,
        )
        self._host.run.hold(snapshot.layers)  # for the snapshot; what this sandbox holds stays held
        self._origin = snapshot
        self._upper = self._host.run.new_layer()
        self._disk = self._watch_upper()
        return snapshot

    async def alive(self) -> bool:
        if self._lost is not None or self._counters is not None:
            return False
        return self._life is None or self._life.alive

    async def close(self) -> Counters:
        if self._counters is not None:
            return self._counters
        life, self._life = self._life, None
        self._counters = self._meter.lifetime(disk_bytes=self._disk.used_bytes)
        if life is not None:
            life.kill()
            life.release()
            if await within(asyncio.shield(life.exited), _CLOSE_WAIT_S) and self._counters.cpu_s is None:
                self._counters = replace(self._counters, cpu_s=self._cpu_s + life.exited.result().cpu_s)
        await self._gate.close()
        exited = life.exited if life is not None else None
        if self._devices is not None:
            self._host.devices.give(self._devices, after=exited)
        layers = (*self._origin.layers, *self._borrowed, self._upper.fs)
        self._host.retire(self, Retired(exited=exited, cgroup=self._cgroup, layers=layers))
        return self._counters

    # --- for the backend and the image builder ----------------------------------------------------------

    async def start(self, *, service_required: bool = True) -> None:
        """Start the processes over the files as they are. Raises `SandboxStartError`."""
        groups = self._cgroup.members_files
        config = self._host.config
        if self._quota is not None and self._limits.disk_bytes is not None:
            await self._quota.cover(self._upper, self._limits.disk_bytes)
        birth = Birth(
            argv=bubblewrap.argv(
                await self._host.views.root(
                    self._origin.layers,
                    self._upper,
                    toolchain=self._toolchain,
                    writable_usr=self._writable_usr,
                    devices=self._devices,
                ),
                command=supervisor.command(groups=len(groups)),
                env={**self._origin.env, **self._gate.env},
                mounts=self._mounts,
            ),
            seccomp=self._host.seccomp,
            groups=groups,
            snapshot=self._origin,
            file_size_bytes=self._limits.disk_bytes,
            output_cap_bytes=config.output_cap_bytes,
            timeout_s=config.start_timeout_s,
            grace_s=config.kill_grace_s,
            began=self._began,
        )
        self._life = await Life.start(birth, service_required=service_required)
        self._origin = self._life.snapshot

    async def _began(self, init_pid: int) -> None:
        counted = "pids" in self._host.cgroups.hierarchies
        restrain(init_pid, processes=None if counted else self._limits.pids)
        await self._gate.open(init_pid)

    @property
    def egress(self) -> EgressReport:
        """Report of what it asked the network for; complete once it is closed."""
        return self._gate.report

    def expire(self, lifetime_s: float) -> None:
        """Lose a sandbox that is older than the configuration allows, by no doing of the model's."""
        if self._lost is None and self._counters is None:
            self._lose(f"older than {lifetime_s:g} s", by_agent=False, lifetime_s=lifetime_s)
            if self._life is not None:
                self._life.kill()

    async def harvest(self) -> Path:
        """End the sandbox's processes and give its writable layer, /usr included, to be moved away."""
        await self._end_life()
        usr = self._upper.root / "usr"
        if usr.is_dir() and any(usr.iterdir()):
            usr.rename(self._upper.fs / "usr")
        return self._upper.fs

    # --- processes, coming and going ----------------------------------------------------------------------

    async def _ready(self, name: str) -> tuple[Life, TerminalShell, bool]:
        """A shell that answers, and whether it had to be started anew because the last one had ended."""
        async with self._waking:
            life, reborn = await self._living()
            try:
                session, restarted = await life.session(name)
            except SandboxStartError:
                if not life.ending:  # PID 1 hangs, its /dev is full, nothing can be forked: all of it must go
                    await self._end_life()
                    await self._revive()
                life, reborn = (await self._living())[0], True
                session, restarted = await life.session(name)
            if session.interrupted:
                if not await life.recover(session):
                    session.end()
                    session, restarted = await life.session(name)
                session.take()  # what a cancelled command wrote is nobody's any more
            return life, session, reborn or restarted

    async def _living(self) -> tuple[Life, bool]:
        if self._lost is not None:
            raise self._lost
        if self._counters is not None:
            raise SandboxError(f"{self.id} is closed")
        life = self._life
        if life is not None and not life.ending:
            return life, False
        if life is None:
            return await self._revive(), False
        oom_kills = self._new_oom_kills()
        end = await self._settle(life)
        if from_outside(end, oom_kills=oom_kills):
            raise self._lose("killed from outside", by_agent=False, exit=end.code, signal=end.init_signal)
        return await self._revive(), True

    async def _revive(self) -> Life:
        try:
            await self.start(service_required=False)
        except SandboxStartError as error:
            # the same machinery started on these layers before; does it still, without this one's writes?
            healthy = await self._control_starts()
            raise self._lose("no shell starts on its files any more", by_agent=healthy, reason=str(error)) from error
        assert self._life is not None
        return self._life

    async def _control_starts(self) -> bool:
        control = NamespaceSandbox(
            self._host, id=f"{self.id}/control", snapshot=replace(self._origin, shell_state=""), limits=self._limits
        )
        try:
            await control.start(service_required=False)
        except SandboxError:
            return False
        finally:
            await control.close()
        return True

    async def _exit_code(self, life: Life, session: TerminalShell) -> int | None:
        """Of a shell that ended by itself; None if PID 1 cannot tell any more."""
        with suppress(SandboxError, TimeoutError):
            async with clock.timeout(_END_WAIT_S):
                return await life.supervisor.exit_code(session.child)
        return None

    async def _end_life(self) -> None:
        """Kill every process of the sandbox and wait until they are dead."""
        if self._life is not None:
            self._life.kill()
            await self._settle(self._life)

    async def _settle(self, life: Life) -> supervisor.Exit:
        end = await asyncio.shield(life.exited)
        if self._life is life:
            self._life = None
            self._cpu_s += end.cpu_s
            life.release()
        return end

    def _lose(self, message: str, *, by_agent: bool, **evidence: object) -> SandboxLost:
        if self._lost is not None:  # the first reason explains the others
            return self._lost
        counts = self._meter.lifetime(disk_bytes=None)
        evidence |= {"oom_kills": counts.oom_kills, "pids_refused": counts.pids_refused}
        self._lost = SandboxLost(f"{self.id}: {message}", by_agent=by_agent, evidence=evidence)
        return self._lost

    def _watch_upper(self) -> DiskWatch:
        upper, mounts = self._upper, tuple(mount.source for mount in self._mounts if mount.writable)
        return DiskWatch(
            lambda stop_at: writable_bytes(upper, mounts, stop_at=stop_at),
            limit_bytes=self._limits.disk_bytes,
            host_directory=self._host.run.path,
            free_disk_bytes=self._host.config.free_disk_bytes,
        )

    def _new_oom_kills(self) -> int:
        total = self._cgroup.oom_kills() or 0
        new, self._oom_kills = total - self._oom_kills, total
        return new
