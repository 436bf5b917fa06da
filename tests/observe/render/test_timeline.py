from __future__ import annotations

from pathlib import Path

import pytest

from muster.journal import Journal
from muster.observe.intervals import Labelled
from muster.observe.render.figures import causes, coarse, devices
from muster.observe.render.timeline import write_figures
from muster.observe.report import build_report
from muster.types import DeviceState
from observe.synthetic import SyntheticRun


def test_three_figures_are_written_as_png(run: SyntheticRun, tmp_path: Path) -> None:
    written = write_figures(build_report(run.journal), tmp_path / "figures")
    assert [p.name for p in written] == ["learning.png", "causes.png", "devices.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in written)


def test_a_figure_without_data_is_left_out(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "empty.sqlite", meta={}) as journal:
        assert write_figures(build_report(journal), tmp_path) == []


def test_bars_add_up_to_the_ttb(run: SyntheticRun) -> None:
    report = build_report(run.journal)
    data = causes(report)
    for i, batch in enumerate(report.batches):
        assert sum(row[i] for row in data.seconds.values()) == pytest.approx(batch.ttb_s, abs=1e-6)


def test_a_coarse_strip_takes_what_filled_most_of_each_cell_and_keeps_gaps() -> None:
    strip = (
        Labelled(0, 3, DeviceState.TRAIN),
        Labelled(3, 10, DeviceState.BATCH_WAIT),
        Labelled(20, 30, DeviceState.TRAIN),
    )
    assert coarse(strip, 0.0, 5.0) == (
        Labelled(0.0, 5.0, DeviceState.TRAIN),
        Labelled(5.0, 10.0, DeviceState.BATCH_WAIT),
        Labelled(20.0, 30.0, DeviceState.TRAIN),
    )


def test_strips_begin_at_the_first_session(run: SyntheticRun) -> None:
    data = devices(build_report(run.journal))
    assert data.strips["trainer"][0].start == 0.0
    assert data.strips["trainer"][-1].end == pytest.approx(data.duration_s, rel=0.01)
