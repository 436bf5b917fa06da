"""One interactive bash on its own pseudo-terminal, which runs what we send it, one script at a time.

    begin:      source ◄─ script;  terminal ◄─ ". /proc/self/fd/42; printf TOKEN CODE >&43"
                                   ... output ─► tap,  status ─► payload NUL token code ─► answer
    interrupt:  SIGINT to the terminal's foreground, as Ctrl-C does; terminal ◄─ "printf TOKEN2 CODE >&43" ─► answer

Law: this file knows one shell and its files; it judges nothing. An answer ends at a random token, never at end of
file, since a background process may hold the pipes for ever. A command's output is a pipe, so that programs neither
colour nor page, and its input is empty; one that insists on a terminal finds /dev/tty. It sees none of our
descriptors but the source. The shell is interactive because only such a bash comes back from an interrupt with its
variables, out of a loop of builtins too; sourced text is not, so that `command &` prints no job numbers. Our
descriptors are 41 to 43: bash takes 63 and down for process substitutions, and when one is interrupted it loses
what else was there.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import shlex
import signal
from collections.abc import Callable

from muster import clock
from muster.errors import SandboxError, SandboxStartError
from muster.sandbox.command import Answer, within
from muster.sandbox.namespace.processes.channel import Channel, reset_terminal
from muster.sandbox.namespace.processes.supervisor import Child, Supervisor
from muster.sandbox.namespace.processes.tap import Tap
from muster.sandbox.namespace.processes.tree import descendants, stop_and_kill
from muster.sandbox.output import HeadTail

_CHUNK_BYTES = 65_536
_HEARD_CAP_BYTES = 4 * 1024 * 1024  # of one answer; only a model that writes to our descriptors comes near
_TIOCSIG = 0x40045436  # asm-generic/ioctls.h: a signal to the foreground group, whatever the terminal's settings
_KILL_ROUNDS = 5
_ASK_GRACE_S = 0.25
_SETTINGS = (
    "\\builtin set +o history +o histexpand +o emacs; \\builtin unset PROMPT_COMMAND HISTFILE MAILCHECK; PS1= PS2=\n"
)


class TerminalShell:
    """Made by `start`. `begin`, then await `answer` (shield it), which is None if the shell ended."""

    def __init__(self, channel: Channel, child: Child, tap: Tap) -> None:
        assert channel.master is not None and channel.status is not None
        self.child = child
        self.tap = tap
        self.interrupted = False
        """Whether a command was interrupted and the shell has not answered since."""
        self.spare: frozenset[int] = frozenset()
        """Host process ids that lived before its command began."""
        self._channel = channel
        self._master = os.dup(channel.master)  # the tap drops its own when the terminal hangs up
        self._status = channel.status
        self._token = b""
        self._heard = bytearray()
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Answer | None] = self._loop.create_future()
        self.answer.set_result(None)
        self._loop.add_reader(self._status, self._on_status)
        child.ended.add_done_callback(lambda _: self._on_exit())
        tap.add(channel.output)
        tap.add(channel.master)

    @classmethod
    async def start(
        cls, supervisor: Supervisor, *, user: str | None, greeting: str, tap: Tap, timeout_s: float
    ) -> TerminalShell:
        """A shell of `user` (as `Supervisor.launch` takes it) that ran `greeting`; its output goes to `tap`.

        Raises `SandboxStartError`.
        """
        try:
            channel = Channel.open(supervisor.root, terminal=True, owner=int(user.split(":")[0]) if user else 0)
        except OSError as error:
            fix = ": raise kernel.pty.max, which all sandboxes share" if error.errno == errno.ENOSPC else ""
            raise SandboxStartError(f"no terminal for a shell: {error.strerror}{fix}") from None
        unused = contextlib.ExitStack()
        unused.callback(channel.close)
        try:
            async with clock.timeout(timeout_s):
                child = await supervisor.launch(channel.id, terminal=channel.terminal, user=user)
                session = cls(channel, child, tap)
                unused.pop_all()
                unused.callback(session.end)
                answered = await session.begin(f"{_SETTINGS}{greeting}")
                if answered is None:
                    raise SandboxError("it ended as it started (it needs /bin/bash and setsid)")
            unused.pop_all()
        except TimeoutError:
            raise SandboxStartError(f"no shell answered in {timeout_s:g} s") from None
        except (SandboxError, OSError) as error:
            raise SandboxStartError(f"no shell starts: {error}") from None
        finally:
            channel.hide()
            unused.close()
        return session

    @property
    def alive(self) -> bool:
        return not self.child.ended.done()

    def begin(self, script: str) -> asyncio.Future[Answer | None]:
        """Run bash source in the shell itself."""
        assert self.answer.done(), "one script at a time"
        if self.alive:
            try:
                self._channel.write(script)
            except OSError:  # a model filled /dev: as if the shell had ended
                self.end()
        return self._tell("\\builtin jobs; \\builtin . /proc/self/fd/42; ")  # jobs: what ended is not told again

    def run(self, command: str) -> asyncio.Future[Answer | None]:
        """Run a model's command: its output to the tap, no input, our descriptors closed."""
        text = shlex.quote(command.replace("\0", ""))
        self.tap.begin()
        return self.begin(f"\\builtin eval {text} </dev/null >&41 2>&41 41>&- 42<&- 43>&-")

    def take(self) -> HeadTail:
        """Take what came since the last command ended; nobody waits from now on."""
        self.tap.idle = True
        return self.tap.take()

    def interrupt(self) -> None:
        """Ctrl-C. Returns at once; the shell answers when it is back, which `recover` waits for."""
        if not self.alive:
            return
        self.interrupted = True
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._master, _TIOCSIG, signal.SIGINT)
        self._again()

    async def recover(self, victims: Callable[[], set[int]], grace_s: float) -> bool:
        """After `interrupt`: wait until the shell answers, and kill what the command left. False: no answer came.

        `victims` gives the processes of the command.
        """
        if await within(asyncio.shield(self.answer), grace_s):
            stop_and_kill(victims)  # what it started in the background
        for _ in range(_KILL_ROUNDS):
            if self.answer.done():
                break
            self.child.signal(signal.SIGSTOP)  # or it would start the next one
            stop_and_kill(victims)
            self.child.signal(signal.SIGINT)
            self.child.signal(signal.SIGCONT)
            self._again()
            await within(asyncio.shield(self.answer), grace_s / _KILL_ROUNDS)
        self.interrupted = False
        return self.answer.done() and self.answer.result() is not None

    async def ask(self, command: str, timeout_s: float) -> tuple[int | None, str]:
        """Run a short command with a deadline; its exit code (None: it had to be ended) and its output."""
        answer = self.run(command)
        if not await within(asyncio.shield(answer), timeout_s):
            self.interrupt()
            await self.recover(self.descendants, _ASK_GRACE_S)
        heard = answer.result() if answer.done() and not answer.cancelled() else None
        return (heard.exit_code if heard is not None else None), self.take().text()

    def descendants(self) -> set[int]:
        """The processes below the shell."""
        return descendants([self.child.pid]) if self.child.pid is not None else set()

    def end(self) -> None:
        """Kill the shell alone and close."""
        self.child.signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Give up the shell's descriptors. What its background processes write still goes to the tap."""
        self.child.close()
        if self._status >= 0:
            self._loop.remove_reader(self._status)
            for fd in (self._status, self._master, self._channel.source):
                os.close(fd)
            self._status = -1
        if not self.answer.done():
            self.answer.set_result(None)

    def _again(self) -> None:
        """Ask for a sign of life, after whatever came before. The line is lost if a program reads the terminal."""
        if not self.answer.done():
            self.answer.cancel()
        self._tell("")

    def _tell(self, line: str) -> asyncio.Future[Answer | None]:
        self.answer = self._loop.create_future()
        if not self.alive:
            self.answer.set_result(None)
            return self.answer
        token = secrets.token_hex(8)
        self._token = token.encode()
        self._heard.clear()
        with contextlib.suppress(OSError):  # the terminal is full or gone: no answer comes, which is the answer
            reset_terminal(self._master)
            os.write(self._master, f"{line}\\builtin printf '\\0%s %d\\n' {token} \"$?\" >&43\n".encode())
        return self.answer

    # --- event loop callbacks -------------------------------------------------------------------------

    def _on_status(self) -> None:
        try:
            chunk = os.read(self._status, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self._loop.remove_reader(self._status)
            return
        self._heard += chunk
        start = self._heard.find(b"\0" + self._token + b" ")
        end = self._heard.find(b"\n", start) if start >= 0 else -1
        if end >= 0 and not self.answer.done():
            code = self._heard[start:end].split(b" ", 1)[1]
            payload = bytes(self._heard[self._heard.rfind(b"\0", 0, start) + 1 : start])
            self.answer.set_result(Answer(exit_code=int(code) if code.isdigit() else 1, payload=payload))
        elif len(self._heard) > _HEARD_CAP_BYTES:
            del self._heard[: -_HEARD_CAP_BYTES // 2]

    def _on_exit(self) -> None:
        if self._status >= 0:
            self._on_status()  # it may have answered last
            self.close()
