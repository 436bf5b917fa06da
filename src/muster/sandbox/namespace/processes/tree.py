"""Processes of a sandbox as the host sees them. Law: reads of /proc and signals; every one may be gone already."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable

_PF_EXITING = 0x4  # linux/sched.h
_FILE_BYTES = 1 << 20


def children(pid: int) -> set[int]:
    """Empty for a process that is gone. The kernel lists the children of each thread by itself."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208  (asked for around every command)
            found.update(map(int, _read(f"/proc/{pid}/task/{task}/children").split()))
    return found


def descendants(roots: Iterable[int]) -> set[int]:
    """All below `roots`, without them."""
    found: set[int] = set()
    todo = list(roots)
    while todo:
        new = children(todo.pop()) - found
        found |= new
        todo += new
    return found


def is_ending(pid: int) -> bool:
    """Whether the kernel is taking it down, or has. A PID 1 stays so while the others in there die."""
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()
    except OSError:
        return True
    return fields[0] in b"ZX" or bool(int(fields[6]) & _PF_EXITING)


def host_pid(init_pid: int, inner_pid: int) -> int | None:
    """The host's number of the child of PID 1 that has `inner_pid` in the sandbox; None if it is gone."""
    for pid in children(init_pid):
        with contextlib.suppress(OSError):
            if _inner_pid(pid) == inner_pid:
                return pid
    return None


def stop_and_kill(victims: Callable[[], set[int]]) -> None:
    """Stop them all, then kill them: none dies while another runs, or a fork bomb would refill what is killed."""
    stopped: set[int] = set()
    while new := victims() - stopped:
        _send(new, signal.SIGSTOP)
        stopped |= new
    _send(stopped, signal.SIGKILL)


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _inner_pid(pid: int) -> int:
    status = _read(f"/proc/{pid}/status")
    line = status[status.index(b"NSpid:") :].split(b"\n", 1)[0]
    return int(line.split()[-1])


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, _FILE_BYTES)
    finally:
        os.close(fd)
