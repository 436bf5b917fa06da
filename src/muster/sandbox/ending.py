"""Who ended a sandbox. Law: pure; blames the model only on evidence, and lets no exit code shift blame.

PID 1 of a sandbox cannot be killed from within: a SIGKILL came from the kernel's memory limit (which its own
counter shows) or from outside. Any other end is something the model's commands did (`exit`, a fatal
signal that bash takes, a debugger on PID 1).
"""

from __future__ import annotations

import signal

from muster.sandbox.shell import Exit


def from_outside(end: Exit, *, oom_kills: int, busy: bool) -> bool:
    """Whether the sandbox was killed with no sign of the model's doing.

    `oom_kills`: kills by its own memory limit since the last look. `busy`: a command of the model was running;
    it decides only on kernels that do not tell `exit 137` from a kill, where an idle shell cannot exit.
    """
    if end.code < 0:  # bubblewrap itself was killed: nothing inside can reach it
        return True
    if oom_kills > 0:
        return False
    if end.init_signal is not None:
        return end.init_signal == signal.SIGKILL
    return end.code == 128 + signal.SIGKILL and not busy
