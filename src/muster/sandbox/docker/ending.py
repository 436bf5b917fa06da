"""Attribution of a container's end. Law: pure; blames the model only on evidence, and lets no exit code shift blame.

PID 1 cannot be killed from within: a SIGKILL came from the kernel's memory limit, which the daemon reports, or from
outside. Any other end is something the model's commands did to it (a debugger, its input). `docker stop` ends with
SIGKILL as well, since the supervisor ignores the signals before it.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

KILLED = 128 + signal.SIGKILL


def by_agent(state: Mapping[str, Any], *, oom_kills_before: int) -> bool:
    """`state`: of an ended container, as the daemon inspects it.

    `oom_kills_before`: kills by its memory limit that were seen while it lived. The daemon's mark stays for good: after
    such a kill it proves nothing about this end.
    """
    if state["ExitCode"] == KILLED:
        return bool(state["OOMKilled"]) and oom_kills_before == 0
    return True
