"""The table and the verdicts of a benchmark."""

from __future__ import annotations

import json
import math

from muster.lab.result import BenchResult, Target


def test_a_target_is_printed_with_its_verdict() -> None:
    met = Target(name="speedup_32", value=2.1, operator=">=", threshold=1.9)
    assert str(met) == "target speedup_32 2.1 >= 1.9 met"
    assert str(Target(name="gap", value=0.2, operator="<=", threshold=0.1)) == "target gap 0.2 <= 0.1 missed"


def test_not_a_number_meets_nothing() -> None:
    for operator in (">=", "<="):
        assert not Target(name="x", value=math.nan, operator=operator, threshold=1).met


def test_a_result_is_met_when_all_its_targets_are() -> None:
    good = Target(name="a", value=2, operator=">=", threshold=1)
    bad = Target(name="b", value=0, operator=">=", threshold=1)
    assert BenchResult(name="x", rows=[], targets=[good]).met
    assert not BenchResult(name="x", rows=[], targets=[good, bad]).met


def test_the_table_aligns_columns_and_ends_with_the_targets() -> None:
    result = BenchResult(
        name="x",
        rows=[{"streams": 1, "ratio": 1.23456}, {"streams": 64, "ratio": 2.0}],
        targets=[Target(name="a", value=2, operator=">=", threshold=1)],
    )
    assert result.table().splitlines() == [
        "streams  ratio",
        "      1  1.235",
        "     64      2",
        "target a 2 >= 1 met",
    ]
    assert json.loads(result.to_json())["targets"][0]["met"] is True
