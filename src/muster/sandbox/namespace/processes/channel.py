"""The way into one shell or service: files that only the two ends hold, and a pseudo-terminal.

    source   a regular file that we write and the shell reads, as /proc/self/fd/42
    output   a FIFO: descriptors 1 and 2 of commands
    status   a FIFO: descriptor 43 of the shell alone
    master   our end of /dev/pts/N, the shell's controlling terminal

Law: they are made under names that nobody can guess in the sandbox's own /dev, a file system that lives as long as
its processes, and the names are gone before any command runs. FIFOs, not pipes, so that /dev/stdout may be opened by
any user.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import struct
import termios
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from muster.sandbox.files import open_inside

# linux/asm-generic/ioctls.h; Python has no names for them
_TIOCGPTN = 0x80045430
_TIOCSPTLCK = 0x40045431
_LINES, _COLUMNS = 24, 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """Descriptors of our ends. `terminal` is N of /dev/pts/N; a service has neither terminal nor status."""

    id: str
    directory: int
    source: int
    output: int
    status: int | None = None
    master: int | None = None
    terminal: int | None = None

    @classmethod
    def open(cls, root: Path, *, terminal: bool, owner: int = 0) -> Channel:
        """In the sandbox whose / is `root`; `owner` is the user of the terminal. Raises `OSError`."""
        id = f".muster-{secrets.token_hex(8)}"
        with contextlib.ExitStack() as undo:

            def hold(fd: int) -> int:
                undo.callback(os.close, fd)
                return fd

            directory = hold(open_inside(root, "/dev", os.O_RDONLY | os.O_DIRECTORY))
            source = hold(os.open(f"{id}-in", os.O_RDWR | os.O_CREAT | os.O_EXCL, dir_fd=directory))
            os.fchmod(source, 0o644)
            output = hold(_fifo(f"{id}-out", directory))
            status = hold(_fifo(f"{id}-end", directory)) if terminal else None
            master = number = None
            if terminal:
                master = hold(open_inside(root, "/dev/pts/ptmx", os.O_RDWR))
                number = _unlock(master)
                if owner:
                    os.chown(root / f"dev/pts/{number}", owner, -1)
            undo.pop_all()
        return cls(
            id=id, directory=directory, source=source, output=output, status=status, master=master, terminal=number
        )

    def write(self, script: str) -> None:
        """Replace the source, before the shell is told to read it. Raises `OSError` when its file system is full."""
        os.ftruncate(self.source, 0)
        data = script.encode(errors="replace")
        if os.pwrite(self.source, data, 0) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Of a channel that nobody came to use."""
        for fd in (self.source, self.output, self.status, self.master):
            if fd is not None:
                os.close(fd)

    def hide(self) -> None:
        """Remove the names; both ends have the files open."""
        for suffix in ("in", "out", "end"):
            with contextlib.suppress(OSError):
                os.unlink(f"{self.id}-{suffix}", dir_fd=self.directory)
        os.close(self.directory)


def reset_terminal(master: int) -> None:
    """Set the terminal as we want it, whatever a program left: lines in, no echo, bytes out as they are."""
    termios.tcsetattr(master, termios.TCSANOW, _settings())


@cache
def _settings() -> list[Any]:
    characters: list[int | bytes] = [b"\0"] * termios.NCCS
    for number, key in ((termios.VINTR, 3), (termios.VQUIT, 28), (termios.VSUSP, 26), (termios.VEOF, 4)):
        characters[number] = bytes([key])
    speed = termios.B38400
    return [termios.ICRNL, 0, termios.CS8 | termios.CREAD, termios.ISIG | termios.ICANON, speed, speed, characters]


def _fifo(name: str, directory: int) -> int:
    os.mkfifo(name, 0o666, dir_fd=directory)
    os.chmod(name, 0o666, dir_fd=directory)  # whatever our umask
    return os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=directory)


def _unlock(master: int) -> int:
    fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
    reset_terminal(master)
    (number,) = struct.unpack("i", fcntl.ioctl(master, _TIOCGPTN, struct.pack("i", 0)))
    return number
