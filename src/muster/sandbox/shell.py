"""One running sandbox process: bubblewrap with a bash as PID 1 that runs what we send it.

    control ─► fd 62 ┐                          ┌ fd 61, 1, 2 ─► output (head and tail kept while reading)
                     ├ while read: eval ────────┤
                     ┘                          └ fd 63 ───────► status: payload NUL token code
    pidfd ──► the process ended, with its exit and CPU time

Law: this file knows processes and pipes; it judges nothing. An answer ends at a random token, never at end of
file, since a background process may hold the pipes for ever. A model's command sees neither the control nor
the status descriptor, and reads nothing from its standard input. PID 1 cannot be killed from within.

bash and bubblewrap die with the thread that started them, and when the control pipe closes: `start` must be
called on the thread of the event loop, which lives as long as the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import resource
import secrets
import shlex
import signal
import struct
from dataclasses import dataclass
from pathlib import Path

from muster import clock
from muster.errors import SandboxStartError
from muster.sandbox.bubblewrap import SECCOMP_FD
from muster.sandbox.output import HeadTail

_CHUNK = 65_536
_FLOOD_BYTES = 4 * 1024 * 1024  # of one command; from here on the pipe is read slowly, and so the writer waits
_FLOOD_PAUSE_S = 0.002
_PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, 64 bytes)
_PIDFD_INFO_EXIT = 1 << 3
_GROUP_FD = 20
_LOOP = (
    # into its cgroups first, by descriptors that are closed before anyone else's code runs
    'for MUSTER in $2; do builtin echo 0 >&"$MUSTER" || exit 97; exec {MUSTER}>&-; done; '
    "exec 61>&1 62<&0 63>&2 </dev/null 2>&1; "
    'builtin cd -- "$1" 2>/dev/null; '
    "builtin printf '\\0ready 0\\n' >&63; "
    'while builtin read -r -d "" -u 62 MUSTER; do builtin eval "$MUSTER"; done'
)


def command(workdir: str, *, groups: int = 0) -> tuple[str, ...]:
    """What bubblewrap runs as PID 1. `groups`: how many cgroups `start` opens for it to enter."""
    descriptors = " ".join(str(_GROUP_FD + n) for n in range(groups))
    return ("/usr/bin/bash", "--noprofile", "--norc", "-c", _LOOP, "bash", workdir, descriptors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The shell finished a script: its exit code, and what it wrote to descriptor 63."""

    exit_code: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How the whole sandbox ended.

    `code`: bubblewrap's own; negative when a signal ended bubblewrap itself, 128 + n when PID 1 exited so or
    died of signal n. `init_signal` tells those two apart: 0 for none, None where the kernel (before 6.15)
    does not say.
    """

    code: int
    cpu_s: float
    init_signal: int | None


class Shell:
    """Made by `start`. One script at a time: `begin`, then await `answer`, which is None if the shell ended."""

    def __init__(self, pid: int, control: int, output: int, status: int) -> None:
        self.pid = pid
        self.init_pid = 0
        self._init_pidfd = -1
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._control, self._output, self._status = control, output, status
        self._pidfd = os.pidfd_open(pid)
        self._token = b"ready"
        self._heard = bytearray()
        self._unsent = b""
        self._sink: HeadTail | None = None
        self.answer: asyncio.Future[Answer | None] = loop.create_future()
        self.exited: asyncio.Future[Exit] = loop.create_future()
        for fd in (control, output, status):
            os.set_blocking(fd, False)
        loop.add_reader(status, self._on_status)
        loop.add_reader(self._pidfd, self._on_exit)

    @classmethod
    async def start(cls, argv: list[str], *, seccomp: Path, groups: tuple[Path, ...] = (), timeout_s: float) -> Shell:
        """Spawn, in the cgroups whose member files are `groups`, and wait until bash answers.

        Raises `SandboxStartError` with bubblewrap's own words.
        """
        shell = _spawn(argv, seccomp, groups)
        try:
            async with clock.timeout(timeout_s):
                answered = await shell.answer
        except TimeoutError:
            shell.kill()
            raise SandboxStartError(f"bash did not answer in {timeout_s:g} s") from None
        except asyncio.CancelledError:
            shell.kill()
            raise
        if answered is None:
            said = bytes(shell._heard).decode(errors="replace").strip()
            raise SandboxStartError(f"bubblewrap failed: {said}", {"exit": (await shell.exited).code})
        shell._hold_init()
        return shell

    def _hold_init(self) -> None:
        """Find PID 1 of the sandbox and hold it by descriptor, which no reuse of the number can mislead."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
            self.init_pid = int(children)
            self._init_pidfd = os.pidfd_open(self.init_pid)
        except (ValueError, OSError):
            self.kill()
            raise SandboxStartError("the sandbox ended as it started") from None

    @property
    def alive(self) -> bool:
        return not self.exited.done()

    def limit_file_size(self, size_bytes: int) -> None:
        resource.prlimit(self.init_pid, resource.RLIMIT_FSIZE, (size_bytes, size_bytes))

    def begin(self, script: str, sink: HeadTail | None = None) -> asyncio.Future[Answer | None]:
        """Run bash source in the shell itself. Its answer may be awaited again after a time-out (shield it)."""
        assert self.answer.done(), "one script at a time"
        self.answer = self._loop.create_future()
        if not self.alive:
            self.answer.set_result(None)
            return self.answer
        token = secrets.token_hex(8)  # unguessable by the command; decides nothing else
        self._token = token.encode()
        self._heard.clear()
        self._sink = sink
        if sink is not None:
            self._loop.add_reader(self._output, self._on_output)
        self._send(f"{script}\nbuiltin printf '\\0%s %d\\n' {token} \"$?\" >&63\0".encode())
        return self.answer

    def run(self, command: str, sink: HeadTail) -> asyncio.Future[Answer | None]:
        """Run a model's command: its output to `sink`, no input, our descriptors closed."""
        text = shlex.quote(command.replace("\0", ""))
        return self.begin(f"builtin eval {text} </dev/null >&61 2>&61 61>&- 62<&- 63>&-", sink)

    def descendants(self) -> set[int]:
        """Host process ids of everything in the sandbox but PID 1."""
        found: set[int] = set()
        todo = [self.init_pid]
        while todo:
            new = _children(todo.pop()) - found
            found |= new
            todo += new
        return found

    def kill(self) -> None:
        """Kill the process namespace with all in it. Does not wait; `exited` tells."""
        if not self.alive:
            return
        # bubblewrap ends by itself once PID 1 is reaped; killed first, it would not wait for the others to die
        pidfd = self._init_pidfd if self._init_pidfd >= 0 else self._pidfd
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    # --- event loop callbacks -------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        try:
            sent = os.write(self._control, data)
        except BlockingIOError:
            sent = 0
        except BrokenPipeError:
            return  # it is ending; `exited` tells
        self._unsent = data[sent:]
        if self._unsent:
            self._loop.add_writer(self._control, self._on_writable)

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._control)
        self._send(self._unsent)

    def _on_status(self) -> None:
        chunk = _read(self._status)
        if not chunk:
            self._loop.remove_reader(self._status)
            return
        self._heard += chunk
        start = self._heard.find(b"\0" + self._token + b" ")
        if start >= 0 and self._heard.endswith(b"\n"):
            code = int(self._heard[start:].split(b" ", 1)[1])
            self._finish(Answer(exit_code=code, payload=bytes(self._heard[:start])))

    def _on_output(self) -> None:
        sink = self._sink
        chunk = _read(self._output)
        if sink is None or not chunk:
            self._loop.remove_reader(self._output)
            return
        sink.add(chunk)
        if sink.total_bytes > _FLOOD_BYTES:
            self._loop.remove_reader(self._output)
            self._loop.call_later(_FLOOD_PAUSE_S, self._resume_output, sink)

    def _resume_output(self, sink: HeadTail) -> None:
        if self._sink is sink:
            self._loop.add_reader(self._output, self._on_output)

    def _finish(self, answer: Answer | None) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            self._loop.remove_reader(self._output)
            # all that the command wrote is in the pipe by now; a background writer may refill it for ever
            for _ in range(16):
                chunk = _read(self._output)
                if not chunk:
                    break
                sink.add(chunk)
        if not self.answer.done():
            self.answer.set_result(answer)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        _, wait_status, usage = os.wait4(self.pid, 0)
        init_signal = _exit_signal(self._init_pidfd) if self._init_pidfd >= 0 else None
        self._on_status_rest()
        self._finish(None)
        for fd in (self._status, self._output):
            self._loop.remove_reader(fd)
        self._loop.remove_writer(self._control)
        for fd in (self._pidfd, self._init_pidfd, self._control, self._output, self._status):
            if fd >= 0:
                os.close(fd)
        code = os.waitstatus_to_exitcode(wait_status)
        self.exited.set_result(Exit(code=code, cpu_s=usage.ru_utime + usage.ru_stime, init_signal=init_signal))

    def _on_status_rest(self) -> None:
        """What it said before it ended: a last answer, or bubblewrap's error message."""
        for _ in range(16):
            before = len(self._heard)
            self._on_status()
            if len(self._heard) == before:
                return


def _spawn(argv: list[str], seccomp: Path, groups: tuple[Path, ...]) -> Shell:
    control_in, control = os.pipe()
    output, output_out = os.pipe()
    status, status_out = os.pipe()
    try:
        pid = os.posix_spawn(
            argv[0],
            argv,
            {},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, control_in, 0),
                (os.POSIX_SPAWN_DUP2, output_out, 1),
                (os.POSIX_SPAWN_DUP2, status_out, 2),
                (os.POSIX_SPAWN_OPEN, SECCOMP_FD, str(seccomp), os.O_RDONLY, 0),
                *(
                    (os.POSIX_SPAWN_OPEN, _GROUP_FD + number, str(path), os.O_WRONLY, 0)
                    for number, path in enumerate(groups)
                ),
            ],
            # Python ignores these two, and a child would inherit that
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    except OSError as error:
        for fd in (control, output, status):
            os.close(fd)
        raise SandboxStartError(f"cannot start {argv[0]}: {error}") from error
    finally:
        for fd in (control_in, output_out, status_out):
            os.close(fd)
    return Shell(pid, control, output, status)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK)
    except BlockingIOError:
        return b""
    except OSError as error:
        if error.errno == errno.EIO:
            return b""
        raise


def _children(pid: int) -> set[int]:
    """Empty for a process that is gone. The file lists the children of one thread."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found.update(int(child) for child in (task / "children").read_text().split())
    return found


def _exit_signal(pidfd: int) -> int | None:
    """The signal that ended the process, 0 if it exited, None if the kernel cannot tell (pidfd_info(2))."""
    info = bytearray(struct.pack("<QQ12I", _PIDFD_INFO_EXIT, 0, *([0] * 12)))
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None
    mask, *_, wait_status = struct.unpack("<QQ11Ii", info)
    return wait_status & 0x7F if mask & _PIDFD_INFO_EXIT else None
