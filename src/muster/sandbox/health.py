"""When a service is healthy, and when its check is asked again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from muster.types import HealthCheck

FIRST_ASK_S = 0.01
_DOUBLINGS = 20  # longer than any interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Unhealthy:
    """Why a service is not taken for healthy. `exit_code` None: it still runs."""

    reason: str
    output: str
    check_output: str
    exit_code: int | None = None

    def evidence(self) -> dict[str, Any]:
        return {"service_output": self.output, "check_output": self.check_output, "service_exit": self.exit_code}


def next_ask_s(check: HealthCheck, *, asked: int, elapsed_s: float) -> float | None:
    """Seconds until the check is asked again after `asked` failures; None: it is unhealthy.

    It has as long as it would have with one ask per interval: the start period and `retries` intervals.
    """
    left_s = check.start_period_s + check.retries * check.interval_s - elapsed_s
    if left_s <= 0:
        return None
    return min(FIRST_ASK_S * 2.0 ** min(asked, _DOUBLINGS), check.interval_s, left_s)
