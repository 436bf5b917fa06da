"""Setting up a step of a task in the sandbox that the last step left.

    files of steps/<name>/workdir ─► workdir ─► setup.sh ─► health asked ─► None, or what went wrong

Law: what an agent left may be in the way; that is data for `steps.unprepared`, never an error. A lost sandbox is one.
Runs beside the agent's shell, in a session of its own.
"""

from __future__ import annotations

import os
import posixpath
import shlex
from pathlib import Path
from typing import Any

from muster import clock
from muster.sandbox.port import Result, Sandbox
from muster.types import HealthCheck, TaskStep

SESSION = "set-up"
_FIRST_PAUSE_S = 0.02
_COPY_TIMEOUT_S = 60.0
_EVIDENCE_CHARS = 1000


async def prepare(sandbox: Sandbox, step: TaskStep, workdir: str, timeout_s: float) -> dict[str, Any] | None:
    """None when the agent may begin; else the evidence of what failed. `timeout_s` bounds setup.sh."""
    if step.setup is not None:
        failure = await _copy(sandbox, step.setup, workdir)
        if failure is None and (step.setup / "setup.sh").is_file():
            script = shlex.quote(posixpath.join(workdir, "setup.sh"))
            failure = _failure(
                "setup.sh",
                await sandbox.run(f"cd {shlex.quote(workdir)} && bash {script}", timeout_s, session=SESSION),
            )
        if failure is not None:
            return failure
    return None if step.health is None else await healthy(sandbox, step.health)


async def healthy(sandbox: Sandbox, check: HealthCheck) -> dict[str, Any] | None:
    """Ask until it is healthy (None), or until that many failures, an interval apart, would have been too many.

    Asked at short intervals first: an answer a moment later costs a moment and not a whole interval.
    """
    begun, pause_s = clock.now(), _FIRST_PAUSE_S
    while True:
        failure = _failure("health", await sandbox.run(check.command, check.timeout_s, session=SESSION))
        if failure is None or clock.now() - begun >= check.start_period_s + (check.retries - 1) * check.interval_s:
            return failure
        await clock.sleep(min(pause_s, check.interval_s))
        pause_s *= 2


async def _copy(sandbox: Sandbox, source: Path, workdir: str) -> dict[str, Any] | None:
    directories, files = [workdir], list[Path]()
    for path in sorted(source.rglob("*")):
        if path.is_dir():
            directories.append(posixpath.join(workdir, path.relative_to(source).as_posix()))
        else:
            files.append(path)
    made = await sandbox.run(f"mkdir -p {shlex.join(directories)}", _COPY_TIMEOUT_S, session=SESSION)
    if (failure := _failure("files", made)) is not None:
        return failure
    programs: list[str] = []
    for path in files:
        target = posixpath.join(workdir, path.relative_to(source).as_posix())
        try:
            await sandbox.write(target, path.read_bytes())
        except OSError as error:  # what the agent left there is no file to write to
            return {"what": "files", "path": target, "error": str(error)}
        if os.access(path, os.X_OK):
            programs.append(target)
    if not programs:
        return None
    return _failure("files", await sandbox.run(f"chmod a+x {shlex.join(programs)}", _COPY_TIMEOUT_S, session=SESSION))


def _failure(what: str, result: Result) -> dict[str, Any] | None:
    if result.exit_code == 0 and not result.timed_out:
        return None
    return {
        "what": what,
        "exit_code": result.exit_code,
        "timed_out": result.timed_out,
        "output": result.output[-_EVIDENCE_CHARS:],
    }
