from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.metrics import JsonlSink, Last, Mean, Metrics, Quantiles, Sum


def test_each_value_reduces_in_its_own_way(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics([JsonlSink(path)])
    for value in (1.0, 2.0, 6.0):
        metrics.observe("mean", Mean.of(value))
        metrics.observe("sum", Sum(value))
        metrics.observe("last", Last(value))
        metrics.observe("time", Quantiles.of(value))
    values = metrics.flush(3)
    assert values == {"mean": 3.0, "sum": 9.0, "last": 6.0, "time/p50": 2.0, "time/p90": 5.2, "time/max": 6.0}
    line = json.loads(path.read_text())
    assert line["step"] == 3
    assert line["mean"] == 3.0


def test_a_flush_forgets_what_it_wrote() -> None:
    metrics = Metrics([])
    metrics.observe("x", Sum(1))
    metrics.flush(0)
    assert metrics.flush(1) == {}


def test_one_metric_is_reduced_in_one_way_only() -> None:
    metrics = Metrics([])
    metrics.observe("x", Sum(1))
    with pytest.raises(AssertionError):
        metrics.observe("x", Mean.of(1))
