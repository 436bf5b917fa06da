from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from muster import clock
from muster.metrics import Metrics
from muster.orchestrator.record import observe_publication
from muster.types import PublicationRecord, Version

RECORD = PublicationRecord(
    version=Version(number=4, digest="d"),
    replica="r0",
    export_s=0.5,
    stage_s=3.0,
    transfer_s=2.0,
    commit_s=0.25,
    pause_s=0.5,
    latency_s=4.0,
    size_bytes=100,
    digest_equal=True,
    canary_difference=0.01,
    held=3,
    aborted=1,
    finished=2,
    recomputed_tokens=70,
)


class Kept:
    """A sink that remembers the last values."""

    def __init__(self) -> None:
        self.values: Mapping[str, float] = {}

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self.values = dict(values)


def test_a_publication_is_measured_part_by_part_and_counted_over_all_replicas() -> None:
    async def main() -> Mapping[str, float]:
        sink = Kept()
        metrics = Metrics([sink])
        observe_publication(metrics, [RECORD, replace(RECORD, replica="r1", pause_s=1.5, transfer_s=0.0, held=1)])
        metrics.flush(4)
        return sink.values

    values = clock.run_virtual(main())
    assert values["pause_s/max"] == 1.5
    assert values["publish_latency_s/p50"] == 4.0
    assert (values["publish_transfer_s/max"], values["publish_decode_s/max"]) == (2.0, 3.0)
    assert values["publish_export_s/p50"] + values["publish_commit_s/p50"] == pytest.approx(0.75)
    assert (values["publish_bytes"], values["publish_held"], values["recomputed_tokens"]) == (200, 4, 140)
    assert (values["publish_aborted"], values["publish_finished"], values["digest_checks"]) == (2, 4, 2)
