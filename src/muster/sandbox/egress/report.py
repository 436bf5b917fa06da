"""Report of the traffic through a door. Law: bounded, whatever a sandbox asks for: it can invent hosts without end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

HOSTS_KEPT = 64
OTHERS = "(others)"


@dataclass(slots=True, kw_only=True)
class EgressTally:
    """Counts while a door is open; `refused` and `failed` by "host:port"."""

    requests: int = 0
    sent_bytes: int = 0  # to the world
    received_bytes: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])

    def refuse(self, where: str) -> None:
        _count(self.refused, where)

    def fail(self, where: str) -> None:
        _count(self.failed, where)

    def report(self) -> EgressReport:
        return EgressReport(
            requests=self.requests,
            sent_bytes=self.sent_bytes,
            received_bytes=self.received_bytes,
            refused=dict(self.refused),
            failed=dict(self.failed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressReport:
    """Evidence of what a sandbox asked the network for.

    `refused`: not on its list, by "host:port"; `failed`: on the list, but the world did not answer.
    `proxy_lost`: the proxy died under it, and what it had counted is gone.
    """

    requests: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    refused: dict[str, int] = field(default_factory=dict[str, int])
    failed: dict[str, int] = field(default_factory=dict[str, int])
    proxy_lost: bool = False

    def __add__(self, other: EgressReport) -> EgressReport:
        return EgressReport(
            requests=self.requests + other.requests,
            sent_bytes=self.sent_bytes + other.sent_bytes,
            received_bytes=self.received_bytes + other.received_bytes,
            refused=dict(Counter(self.refused) + Counter(other.refused)),
            failed=dict(Counter(self.failed) + Counter(other.failed)),
            proxy_lost=self.proxy_lost or other.proxy_lost,
        )


def _count(counts: Counter[str], where: str) -> None:
    counts[where if where in counts or len(counts) < HOSTS_KEPT else OTHERS] += 1
