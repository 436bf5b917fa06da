"""One running sandbox: bubblewrap, with a small bash as PID 1 that starts shells and services when we ask.

    control ─► fd 58 ─► while read: start | wait ─► fd 59 ─► "<id> <answer>"
                              └─ setsid ─► a shell on a pseudo-terminal, or a service    (see `session`, `service`)
    pidfd ──► the process ended, with its exit and CPU time

Law: PID 1 runs nothing that a model wrote, so that no command ends the sandbox: it evaluates no input, takes every
signal, and reaps whatever dies below it. It needs bash and `setsid` (util-linux or busybox), and `setpriv` or
`chroot` for a user that is not root.

bash and bubblewrap die with the thread that started them, and when the control pipe closes: `start` must be
called on the thread of the event loop, which lives as long as the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import signal
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from muster import clock
from muster.errors import SandboxError, SandboxStartError
from muster.sandbox.namespace.isolation.bubblewrap import SECCOMP_FD
from muster.sandbox.namespace.processes.tree import children, host_pid

_CHUNK = 65_536
_PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, 64 bytes)
_PIDFD_INFO_EXIT = 1 << 3
_GROUP_FD = 20
_READY = "0"
_SCRIPT_FD = 8
_PID_1 = r"""
# into its cgroups first, by descriptors that are closed before anyone else's code runs
for group; do echo 0 >&"$group" || exit 97; done
exec 58<&0 59>&1 </dev/null
printf '0 0\n' >&59 # our host has things to do meanwhile
# ours, and whatever our host had open without wanting to share it
for fd in /proc/self/fd/*; do
    fd=${fd##*/}
    case $fd in 0 | 1 | 2 | 58 | 59) ;; *) exec {fd}>&- ;; esac
done
exec >/dev/null 2>&1
# bash would end on most signals; children get the default actions back
trap : HUP INT QUIT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM TERM STKFLT XCPU XFSZ VTALRM PROF IO PWR SYS
set -f
begin() { # id, terminal or "-", uid:gid:groups or "-"
    exec 58<&- 59>&- 41>"/dev/$1-out" 42<"/dev/$1-in"
    local as=() user
    if [[ $3 != - ]]; then
        IFS=: read -ra user <<<"$3"
        if type -P setpriv; then as=(setpriv --reuid="${user[0]}" --regid="${user[1]}" --groups="${user[2]}")
        else as=(chroot --userspec="${user[0]}:${user[1]}" --groups="${user[2]}" /); fi
    fi
    if [[ $2 == - ]]; then
        exec >&41 2>&41
        exec setsid "${as[@]}" /bin/bash --noprofile --norc -c '. /proc/self/fd/42'
    fi
    exec 43>"/dev/$1-end" <"/dev/pts/$2"
    exec setsid -c "${as[@]}" /bin/bash --noprofile --norc --noediting -i
}
while read -r -u 58 id what first second || (($? > 128)); do
    case $what in
        start) begin "$id" "$first" "$second" & printf '%s %d\n' "$id" "$!" >&59 ;;
        wait) wait "$first"; printf '%s %d\n' "$id" "$?" >&59 ;;
    esac
done
"""


def command(*, groups: int = 0) -> tuple[str, ...]:
    """Command line that bubblewrap runs as PID 1. `groups`: how many cgroups `start` opens for it to enter."""
    # the script comes by descriptor: a model that lists processes should not have to read it
    start = ("/bin/bash", "--noprofile", "--norc", "-c", f". /proc/self/fd/{_SCRIPT_FD}", "muster")
    return (*start, *(str(_GROUP_FD + n) for n in range(groups)))


@cache
def _script() -> int:
    fd = os.memfd_create("muster")
    os.write(fd, _PID_1.encode())
    return fd


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Exit of the whole sandbox.

    `code`: bubblewrap's own; negative when a signal ended bubblewrap itself, 128 + n when PID 1 exited so or
    died of signal n. `init_signal` tells those two apart: 0 for none, None where the kernel (before 6.15)
    does not say.
    """

    code: int
    cpu_s: float
    init_signal: int | None


class Supervisor:
    """Supervisor of a sandbox's processes. Made by `start`. Ends by `kill`, or by itself: `exited` tells."""

    def __init__(self, pid: int, control: int, report: int) -> None:
        self.pid = pid
        self.init_pid = 0
        self._init_pidfd = -1
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._control, self._report = control, report
        self._pidfd = os.pidfd_open(pid)
        self._heard = bytearray()
        self._asked: dict[str, asyncio.Future[int | None]] = {_READY: loop.create_future()}
        self.exited: asyncio.Future[Exit] = loop.create_future()
        for fd in (control, report):
            os.set_blocking(fd, False)
        loop.add_reader(report, self._on_report)
        loop.add_reader(self._pidfd, self._on_exit)

    @classmethod
    async def start(
        cls, argv: list[str], *, seccomp: Path, groups: tuple[Path, ...] = (), timeout_s: float
    ) -> Supervisor:
        """Spawn, in the cgroups whose member files are `groups`, and wait until PID 1 answers.

        Raises `SandboxStartError` with bubblewrap's own words.
        """
        started = _spawn(argv, seccomp, groups)
        try:
            async with clock.timeout(timeout_s):
                answered = await started._asked[_READY]
        except TimeoutError:
            started.kill()
            raise SandboxStartError(f"the sandbox did not answer in {timeout_s:g} s") from None
        except asyncio.CancelledError:
            started.kill()
            raise
        if answered is None:
            said = bytes(started._heard).decode(errors="replace").strip()
            raise SandboxStartError(f"bubblewrap failed: {said}", {"exit": (await started.exited).code})
        started._hold_init()
        return started

    @property
    def alive(self) -> bool:
        return not self.exited.done()

    @property
    def root(self) -> Path:
        """The sandbox's own / as this host can reach it. Open paths below it with `files.open_inside` alone."""
        return Path(f"/proc/{self.init_pid}/root")

    def limit_file_size(self, size_bytes: int) -> None:
        """Of every process that starts from now on."""
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self.init_pid, resource.RLIMIT_FSIZE, (size_bytes, size_bytes))

    async def launch(self, id: str, *, terminal: int | None, user: str | None) -> Child:
        """Start a shell on /dev/pts/`terminal`, or without one a script, on the files /dev/`id`-{in,out,end}.

        `user`: "uid:gid:group,…". Raises `SandboxError` if PID 1 is gone.
        """
        place = "-" if terminal is None else str(terminal)
        inner = await self._ask(id, f"start {place} {user or '-'}")
        return Child(inner, host_pid(self.init_pid, inner))

    async def exit_code(self, child: Child) -> int:
        """Of a launched process that ended: 128 + n when a signal did it. Raises `SandboxError` as `launch`."""
        return await self._ask(f"w{child.inner_pid}", f"wait {child.inner_pid}")

    def kill(self) -> None:
        """Kill the process namespace with all in it. Does not wait; `exited` tells."""
        if not self.alive:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._init_pidfd >= 0:
                # bubblewrap ends by itself once PID 1 is reaped; killed first, it would not wait for the others to die
                signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)
            else:
                # a PID 1 that was just made waits for bubblewrap, not yet bound to die with it: it would wait forever
                os.killpg(self.pid, signal.SIGKILL)

    async def _ask(self, id: str, request: str) -> int:
        future: asyncio.Future[int | None] = self._loop.create_future()
        self._asked[id] = future
        try:
            if self.alive:
                os.write(self._control, f"{id} {request}\n".encode())
        except OSError:
            pass  # its end is on its way, and resolves what was asked
        if not self.alive:
            future.set_result(None)
        try:
            answer = await future
        finally:
            self._asked.pop(id, None)
        if answer is None:
            raise SandboxError("the sandbox ended")
        return answer

    def _hold_init(self) -> None:
        """Find PID 1 of the sandbox and hold it by descriptor, which no reuse of the number can mislead."""
        try:
            (self.init_pid,) = children(self.pid)
            self._init_pidfd = os.pidfd_open(self.init_pid)
        except (ValueError, OSError):
            self.kill()
            raise SandboxStartError("the sandbox ended as it started") from None

    # --- event loop callbacks -------------------------------------------------------------------------

    def _on_report(self) -> None:
        try:
            chunk = os.read(self._report, _CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            self._loop.remove_reader(self._report)
            return
        self._heard += chunk
        *lines, rest = self._heard.split(b"\n")
        for line in lines:
            id, _, answer = line.decode(errors="replace").partition(" ")
            future = self._asked.get(id)
            # what is no answer of ours stays unread: bubblewrap's complaint, or a model that writes to /proc/1/fd
            if future is not None and not future.done() and answer.isdecimal():
                future.set_result(int(answer))
                self._heard = rest
        del self._heard[:-_CHUNK]

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        _, wait_status, usage = os.wait4(self.pid, 0)
        init_signal = _exit_signal(self._init_pidfd) if self._init_pidfd >= 0 else None
        self._on_report()
        self._loop.remove_reader(self._report)
        for fd in (self._pidfd, self._init_pidfd, self._control, self._report):
            if fd >= 0:
                os.close(fd)
        code = os.waitstatus_to_exitcode(wait_status)
        self.exited.set_result(Exit(code=code, cpu_s=usage.ru_utime + usage.ru_stime, init_signal=init_signal))
        for future in self._asked.values():
            if not future.done():
                future.set_result(None)


class Child:
    """A process that PID 1 started, held by descriptor. One that was gone before we could look has ended."""

    def __init__(self, inner_pid: int, pid: int | None) -> None:
        self.inner_pid = inner_pid
        self.pid = pid
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pidfd = -1
        with contextlib.suppress(ProcessLookupError):
            if pid is not None:
                self._pidfd = os.pidfd_open(pid)
        if self._pidfd >= 0:
            asyncio.get_running_loop().add_reader(self._pidfd, self.close)
        else:
            self.ended.set_result(None)

    def signal(self, number: signal.Signals) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        """It ended, or we look no more."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if not self.ended.done():
            self.ended.set_result(None)


def _spawn(argv: list[str], seccomp: Path, groups: tuple[Path, ...]) -> Supervisor:
    control_in, control = os.pipe()
    report, report_out = os.pipe()
    try:
        pid = os.posix_spawn(
            argv[0],
            argv,
            {},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, control_in, 0),
                (os.POSIX_SPAWN_DUP2, report_out, 1),
                (os.POSIX_SPAWN_DUP2, report_out, 2),
                (os.POSIX_SPAWN_DUP2, _script(), _SCRIPT_FD),
                (os.POSIX_SPAWN_OPEN, SECCOMP_FD, str(seccomp), os.O_RDONLY, 0),
                *(
                    (os.POSIX_SPAWN_OPEN, _GROUP_FD + number, str(path), os.O_WRONLY, 0)
                    for number, path in enumerate(groups)
                ),
            ],
            setpgroup=0,  # of its own: it is killed with what it began, and no interrupt at our terminal reaches it
            # Python ignores these two, and a child would inherit that
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    except OSError as error:
        for fd in (control, report):
            os.close(fd)
        raise SandboxStartError(f"cannot start {argv[0]}: {error}") from error
    finally:
        for fd in (control_in, report_out):
            os.close(fd)
    return Supervisor(pid, control, report)


def _exit_signal(pidfd: int) -> int | None:
    """The signal that ended the process, 0 if it exited, None if the kernel cannot tell (pidfd_info(2))."""
    info = bytearray(struct.pack("<QQ12I", _PIDFD_INFO_EXIT, 0, *([0] * 12)))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    mask, *_, wait_status = struct.unpack("<QQ11Ii", info)
    return wait_status & 0x7F if mask & _PIDFD_INFO_EXIT else None
