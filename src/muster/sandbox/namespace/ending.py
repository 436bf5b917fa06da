"""Attribution of a sandbox's end. Law: pure; blames the model only on evidence.

PID 1 runs nothing of a model's, takes every signal, and cannot be traced: a SIGKILL came from the kernel's memory
limit (which its own counter shows) or from outside. Any other end, an exit of PID 1 by itself, is something the
model's commands did to it.
"""

from __future__ import annotations

import signal

from muster.sandbox.namespace.processes.supervisor import Exit


def from_outside(end: Exit, *, oom_kills: int) -> bool:
    """Whether the sandbox was killed with no sign of the model's doing.

    `oom_kills`: kills by its own memory limit since the last look.
    """
    if end.code < 0:  # bubblewrap itself was killed: nothing inside can reach it
        return True
    if oom_kills > 0:
        return False
    # kernels before 6.15 do not tell an exit from a kill; PID 1 never exits with that code
    return end.code == 128 + signal.SIGKILL if end.init_signal is None else end.init_signal == signal.SIGKILL
