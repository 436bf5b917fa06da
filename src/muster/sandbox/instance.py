"""One namespace sandbox: its files, its limits, and the shell that comes and goes over them.

Law: the files outlive the shell. A shell that ended by the model's doing is started again over the same
writable layer; only an end from outside, or files on which no shell can start, lose the sandbox. See
`namespace` for the flow.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from muster import clock
from muster.errors import SandboxError, SandboxLost, SandboxStartError
from muster.sandbox import bubblewrap
from muster.sandbox import shell as shells
from muster.sandbox.cgroup import Cgroups
from muster.sandbox.config import MIB, SandboxConfig
from muster.sandbox.disk import DiskBudget
from muster.sandbox.ending import from_outside
from muster.sandbox.files import read_inside, usage_bytes, write_inside
from muster.sandbox.janitor import Retired
from muster.sandbox.output import HeadTail
from muster.sandbox.port import MAIN, Counters, Mount, Result, Snapshot
from muster.sandbox.shell import Answer, Exit, Shell
from muster.sandbox.state import RunDirectory
from muster.types import Limits

_KILL_ROUNDS = 5  # a loop in the shell starts the next process as soon as one is killed
_CAPTURE_TIMEOUT_S = 5.0
_STATE_CAP_BYTES = MIB  # of captured shell state; a larger one keeps the working directory alone
_CLOSE_WAIT_S = 0.005
# options come last: with `errexit` on, the line before must not fail
_CAPTURE = (
    "{ builtin unset MUSTER; builtin declare -p; builtin declare -f; builtin shopt -p; builtin trap -p; "
    "builtin printf 'builtin '; builtin umask -p; "
    "builtin printf 'builtin cd -- %q\\n' \"$PWD\"; builtin set +o; } >&63 2>/dev/null"
)


class Stop(StrEnum):
    """Why a command was ended before it answered."""

    TIME = "time"
    DISK = "disk"
    HOST_DISK = "host_disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What all sandboxes of a backend share."""

    config: SandboxConfig
    cgroups: Cgroups
    run: RunDirectory
    seccomp: Path
    image_layers: Path
    retire: Callable[[NamespaceSandbox, Retired], None]


class NamespaceSandbox:
    """Implements `sandbox.port.Sandbox`. Made by `NamespaceBackend.fork`; used by one caller at a time.

    `writable_usr` gives image builds a writable layer over /usr as well; see `harvest`.
    """

    def __init__(
        self,
        host: Host,
        *,
        id: str,
        snapshot: Snapshot,
        limits: Limits,
        mounts: tuple[Mount, ...] = (),
        writable_usr: bool = False,
    ) -> None:
        self.id = id
        self._host = host
        self._origin = snapshot
        self._limits = limits
        self._mounts = mounts
        self._writable_usr = writable_usr
        host.run.hold(snapshot.layers)
        self._upper = host.run.new_layer()
        self._disk = DiskBudget(limits.disk_bytes)
        self._cgroup = host.cgroups.create(host.run.name, self._upper.root.name, limits)
        self._shell: Shell | None = None
        self._oom_kills = 0
        self._cpu_s = 0.0
        self._lost: SandboxLost | None = None
        self._counters: Counters | None = None

    # --- the port -------------------------------------------------------------------------------------

    async def run(
        self, command: str, timeout_s: float, *, silence_s: float | None = None, session: str = MAIN
    ) -> Result:
        started = clock.now()
        shell, restarted = await self._ready()
        sink = HeadTail(self._host.config.output_cap_bytes)
        before = shell.descendants()
        try:
            answer = shell.run(command, sink)
            stop = await self._watch(answer, timeout_s)
            if stop is not None and not await self._interrupt(shell, answer, before if stop is Stop.TIME else set()):
                await self._end_shell()
        except asyncio.CancelledError:
            shell.kill()  # whatever it was doing, the next command finds a fresh shell
            raise
        duration_s = clock.now() - started
        heard = answer.result() if answer.done() else None
        oom_kills = self._new_oom_kills() if heard is None or heard.exit_code != 0 else 0
        exit_code = heard.exit_code if heard is not None and stop is None else None
        if heard is None:
            if stop is None:
                exit_code = await self._ended(shell, busy=True, oom_kills=oom_kills)
            await self._restart()
            restarted = True
        if stop is None and self._disk.ran(duration_s):
            stop = await self._disk_stop()
        return Result(
            output=sink.text() + self._disk_message(stop),
            exit_code=exit_code,
            duration_s=duration_s,
            timed_out=stop is Stop.TIME,
            out_of_memory=oom_kills > 0,
            shell_restarted=restarted,
            omitted_bytes=sink.omitted_bytes,
        )

    async def read(self, path: str) -> bytes:
        shell, _ = await self._ready()
        try:
            return await asyncio.to_thread(read_inside, Path(f"/proc/{shell.init_pid}/root"), path)
        except NotADirectoryError as error:
            raise FileNotFoundError(*error.args) from None

    async def write(self, path: str, data: bytes) -> None:
        shell, _ = await self._ready()
        await asyncio.to_thread(write_inside, Path(f"/proc/{shell.init_pid}/root"), path, data)

    async def snapshot(self) -> Snapshot:
        state = await self._capture()
        await self._end_shell()
        frozen = self._upper
        snapshot = Snapshot(
            id=f"{self._host.run.name}/{frozen.root.name}",
            layers=(*self._origin.layers, frozen.fs),
            workdir=self._origin.workdir,
            env=self._origin.env,
            shell_state=state,
        )
        self._host.run.hold(snapshot.layers)  # for the snapshot; what this sandbox holds stays held
        self._origin = snapshot
        self._upper = self._host.run.new_layer()
        self._disk = DiskBudget(self._limits.disk_bytes)
        return snapshot

    async def alive(self) -> bool:
        if self._lost is not None or self._counters is not None:
            return False
        return self._shell is None or self._shell.alive

    async def close(self) -> Counters:
        if self._counters is not None:
            return self._counters
        shell = self._shell
        self._counters = self._count()
        if shell is not None:
            shell.kill()
            if await _within(asyncio.shield(shell.exited), _CLOSE_WAIT_S):
                self._cpu_s += shell.exited.result().cpu_s
                self._counters = replace(self._counters, cpu_s=self._cpu_s)
        exited = shell.exited if shell is not None else None
        layers = (*self._origin.layers, self._upper.fs)
        self._host.retire(self, Retired(exited=exited, cgroup=self._cgroup, layers=layers))
        return self._counters

    # --- for the backend and the image builder ----------------------------------------------------------

    async def start(self) -> None:
        """Start the shell over the files as they are, and restore its state. Raises `SandboxStartError`."""
        line = bubblewrap.argv(
            self._root(),
            command=shells.command(self._origin.workdir, groups=len(self._cgroup.members_files)),
            env=self._origin.env,
            mounts=self._mounts,
        )
        timeout_s = self._host.config.start_timeout_s
        shell = await Shell.start(
            line, seccomp=self._host.seccomp, groups=self._cgroup.members_files, timeout_s=timeout_s
        )
        self._shell = shell
        if self._limits.disk_bytes is not None:
            shell.limit_file_size(self._limits.disk_bytes)
        if self._origin.shell_state:
            await self._restore(shell)

    async def harvest(self) -> Path:
        """End the sandbox's processes and give its writable layer, /usr included, to be moved away."""
        await self._end_shell()
        usr = self._upper.root / "usr"
        if self._writable_usr and any(usr.iterdir()):
            usr.rename(self._upper.fs / "usr")
        return self._upper.fs

    # --- the shell, coming and going --------------------------------------------------------------------

    async def _ready(self) -> tuple[Shell, bool]:
        """A shell that answers, and whether it had to be started anew because the last one had ended."""
        if self._lost is not None:
            raise self._lost
        if self._counters is not None:
            raise SandboxError(f"{self.id} is closed")
        if self._shell is not None and self._shell.alive:
            return self._shell, False
        ended = self._shell is not None
        if self._shell is not None:
            await self._ended(self._shell, busy=False, oom_kills=self._new_oom_kills())
        await self._restart()
        assert self._shell is not None
        return self._shell, ended

    async def _restart(self) -> None:
        try:
            await self.start()
        except SandboxStartError as error:
            # the same machinery started on these layers before; does it still, without this one's writes?
            healthy = await self._control_starts()
            raise self._lose("no shell starts on its files any more", by_agent=healthy, reason=str(error)) from error

    async def _control_starts(self) -> bool:
        control = NamespaceSandbox(
            self._host, id=f"{self.id}/control", snapshot=replace(self._origin, shell_state=""), limits=self._limits
        )
        try:
            await control.start()
        except SandboxError:
            return False
        finally:
            await control.close()
        return True

    async def _ended(self, shell: Shell, *, busy: bool, oom_kills: int) -> int | None:
        """The shell ended by itself: its exit code. Raises `SandboxLost` if it was killed from outside."""
        end = await self._settle(shell)
        if from_outside(end, oom_kills=oom_kills, busy=busy):
            raise self._lose("killed from outside", by_agent=False, exit=end.code, signal=end.init_signal)
        return None if oom_kills else end.code

    async def _end_shell(self) -> None:
        """Kill every process of the sandbox and wait until they are dead."""
        if self._shell is not None:
            self._shell.kill()
            await self._settle(self._shell)

    async def _settle(self, shell: Shell) -> Exit:
        end = await asyncio.shield(shell.exited)
        if self._shell is shell:
            self._shell = None
            self._cpu_s += end.cpu_s
        return end

    def _lose(self, message: str, *, by_agent: bool, **evidence: object) -> SandboxLost:
        counts = self._count()
        evidence |= {"oom_kills": counts.oom_kills, "pids_refused": counts.pids_refused}
        self._lost = SandboxLost(f"{self.id}: {message}", by_agent=by_agent, evidence=evidence)
        return self._lost

    async def _capture(self) -> str:
        """Shell state as bash source. Empty when the shell cannot tell (it was left in a broken state)."""
        shell, _ = await self._ready()
        answer = shell.begin(_CAPTURE)
        if not await _within(asyncio.shield(answer), _CAPTURE_TIMEOUT_S):
            return ""
        heard = answer.result()
        if heard is None or len(heard.payload) > _STATE_CAP_BYTES:
            return ""
        return heard.payload.decode(errors="replace")

    async def _restore(self, shell: Shell) -> None:
        """A state on which the shell ends or hangs (a model can make one) is left out."""
        script = f"builtin eval {shlex.quote(self._origin.shell_state)} >/dev/null 2>&1"
        answer = shell.begin(script)
        if await _within(asyncio.shield(answer), _CAPTURE_TIMEOUT_S) and answer.result() is not None:
            return
        await self._end_shell()
        self._origin = replace(self._origin, shell_state="")
        await self.start()

    # --- limits -----------------------------------------------------------------------------------------

    async def _watch(self, answer: asyncio.Future[Answer | None], timeout_s: float) -> Stop | None:
        """Wait for the answer; say why it must end earlier."""
        deadline = clock.now() + timeout_s
        while True:
            left_s = deadline - clock.now()
            poll_s = self._disk.poll_s
            if await _within(asyncio.shield(answer), left_s if poll_s is None else min(left_s, poll_s)):
                return None
            if clock.now() >= deadline:
                return Stop.TIME
            stop = await self._disk_stop()
            if stop is not None:
                return stop

    async def _interrupt(self, shell: Shell, answer: asyncio.Future[Answer | None], spare: set[int]) -> bool:
        """Kill the command's processes but those in `spare`. True if the shell then answers."""
        for _ in range(_KILL_ROUNDS):
            for pid in shell.descendants() - spare:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if await _within(asyncio.shield(answer), self._host.config.kill_grace_s / _KILL_ROUNDS):
                return answer.result() is not None
        return False

    async def _disk_stop(self) -> Stop | None:
        """Measure what the sandbox may write: its layer and its writable mounts."""
        limit = self._disk.limit_bytes
        places = (self._upper.root, *(m.source for m in self._mounts if m.writable))
        used = sum([await asyncio.to_thread(usage_bytes, place, stop_at=limit) for place in places])
        if self._disk.measured(used):
            return Stop.DISK
        free = shutil.disk_usage(self._upper.root).free
        return Stop.HOST_DISK if free < self._host.config.free_disk_bytes else None

    def _disk_message(self, stop: Stop | None) -> str:
        if stop is Stop.DISK:
            limit = (self._disk.limit_bytes or 0) / MIB
            return f"\nNo space left on device (this sandbox's disk limit of {limit:.0f} MiB is reached)\n"
        return "\nNo space left on device\n" if stop is Stop.HOST_DISK else ""

    def _new_oom_kills(self) -> int:
        total = self._cgroup.oom_kills() or 0
        new, self._oom_kills = total - self._oom_kills, total
        return new

    def _count(self) -> Counters:
        return Counters(
            cpu_s=None,
            peak_memory_bytes=self._cgroup.peak_memory_bytes(),
            oom_kills=self._cgroup.oom_kills(),
            pids_refused=self._cgroup.pids_refused(),
            disk_bytes=self._disk.used_bytes,
        )

    def _root(self) -> bubblewrap.Root:
        images = self._host.image_layers
        usr = (_usr_of(layer) for layer in self._origin.layers if layer.is_relative_to(images))
        usr_upper = None
        if self._writable_usr:
            usr_upper = (self._upper.root / "usr", self._upper.root / "usr_work")
            for directory in usr_upper:
                directory.mkdir(exist_ok=True)
        return bubblewrap.Root(
            layers=self._origin.layers,
            upper=self._upper.fs,
            work=self._upper.work,
            usr_layers=tuple(directory for directory in usr if directory is not None),
            usr_upper=usr_upper,
        )


@cache
def _usr_of(image_layer: Path) -> Path | None:
    """What an image layer adds to /usr; image layers never change."""
    usr = image_layer / "usr"
    return usr if usr.is_dir() and any(usr.iterdir()) else None


async def _within(future: asyncio.Future[Any], timeout_s: float) -> bool:
    """Whether `future` is done in time. Shield it if it must outlive the wait."""
    try:
        async with clock.timeout(max(0.0, timeout_s)):
            await future
    except TimeoutError:
        return False
    return True
