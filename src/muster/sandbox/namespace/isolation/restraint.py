"""Limits that need no cgroup. Law: set from outside on PID 1 before anything else runs; all others inherit them.

`RLIMIT_NPROC` counts the processes of a user in one user namespace (since Linux 5.14), and an ordinary user's sandbox
has one of its own: there it limits the sandbox as a cgroup would, only that nobody counts the refusals. For root
it limits nothing, and root has cgroups.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path

_FIRST = 1000


def restrain(init_pid: int, *, processes: int | None) -> None:
    """Let the host take a sandbox and not us when it runs out of memory itself. `processes`: at most so many."""
    with suppress(OSError):  # it is gone: whoever waits for it is told
        Path(f"/proc/{init_pid}/oom_score_adj").write_text(str(_FIRST))
        if processes is not None:
            resource.prlimit(init_pid, resource.RLIMIT_NPROC, (processes, processes))
