"""Waiting until an image's service is healthy, in any backend.

    ask after 10 ms, 20, 40 … up to interval_s ─► healthy │ it ended │ out of patience ─► SandboxStartError, if required

Law: a service has as long as it would have with one ask per interval, however often it is asked.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable

from muster import clock
from muster.errors import SandboxStartError
from muster.sandbox.port import Service
from muster.types import HealthCheck

FIRST_ASK_S = 0.01
_DOUBLINGS = 20  # longer than any interval

Ask = Callable[[str, float], Awaitable[tuple[int | None, str]]]
"""Runs a command with a deadline: its exit code (None: it had to be ended) and its output."""


def next_ask_s(check: HealthCheck, *, asked: int, elapsed_s: float) -> float | None:
    """Seconds until the check is asked again after `asked` failures; None: it is unhealthy.

    It has as long as it would have with one ask per interval: the start period and `retries` intervals.
    """
    left_s = check.start_period_s + check.retries * check.interval_s - elapsed_s
    if left_s <= 0:
        return None
    return min(FIRST_ASK_S * 2.0 ** min(asked, _DOUBLINGS), check.interval_s, left_s)


async def wait_healthy(
    service: Service,
    *,
    required: bool,
    ask: Ask,
    exit_code: Callable[[], Awaitable[int | None]],
    said: Callable[[], str],
) -> None:
    """Until it is healthy, or nothing more is to be hoped for: then raises `SandboxStartError`, if it is `required`.

    `exit_code`: of the service, None while it runs. `said`: what it wrote.
    """
    check = service.check
    started = clock.now()
    asked, answer, ended = 0, "", None
    while not ended and (pause_s := next_ask_s(check, asked=asked, elapsed_s=clock.now() - started)) is not None:
        await clock.sleep(pause_s)
        code, answer = await ask(f"/bin/sh -c {shlex.quote(check.command)}", check.timeout_s)
        if code == 0:
            return
        asked += 1
        ended = await exit_code()  # with 0 it may be a daemon, which lives on
    if required:
        reason = "it ended" if ended else f"its check failed {asked} times"
        raise SandboxStartError(
            f"the image's service is not healthy: {reason}: {shlex.join(service.command)}",
            {"service_output": said(), "check_output": answer, "service_exit": ended or None},
        )
