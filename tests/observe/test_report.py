from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from muster.journal import Journal, SessionRow
from muster.observe.render.text import compare, render_text
from muster.observe.report import Report, build_report, to_json
from muster.observe.sections.ledgers import device_hours
from muster.observe.sections.questions import headline, sections
from observe.synthetic import SyntheticRun


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Journal]:
    with Journal.create(tmp_path / "empty.sqlite", meta={"run": "empty"}) as journal:
        yield journal


def text(report: Report, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    render_text(report, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_every_question_is_answered_in_a_sentence_first(run: SyntheticRun) -> None:
    report = build_report(run.journal)
    assert headline(report) == "6 of 6 steps, 1:33 of wall time in 2 sessions; finished"
    answers = {s.title.split(".")[0]: s.sentence for s in sections(report)}
    assert answers["1"].startswith(
        "A trainable batch took 12.6 s (p50; p90 16.1 s), for which the trainer waited 11.5 s (p50); most"
    )
    assert answers["2"].startswith(
        "Every trained token came from the policy that was trained; 1 group dropped as too stale"
    )
    assert "differ by 0.003 nats per token, over tokens of the version that was trained: numerics alone" in answers["3"]
    assert "correction in force: token_tis (cap 2.0)" in answers["3"]
    assert answers["4"].startswith("76 of 78 training trajectories were graded by fact")
    assert "New weights served 500 ms after the step (p50)" in answers["5"]
    assert "from 20.0 % [10.0, 30.0] at version 0 to 60.0 % [50.0, 70.0] at version 6" in answers["6"]


def test_the_terminal_shows_causes_stragglers_devices_and_one_recommendation(run: SyntheticRun) -> None:
    shown = text(build_report(run.journal, {0: {"engine": 2.0, "path": 4.0}}))
    for line in (
        "TTB by cause, all 6 batches",
        "Slowest trajectories",
        "Outcomes, train: 80 launched = 78 ended + 1 dropped + 1 unfinished",
        "sandbox lost",
        "waiting for environments",
        "76 graded trajectories: 72 trained once, 0 kept for a later batch, 4 dropped with their group; 0 lost",
        "(schedule.max_lag = 1)",
        "unknown: slots, KV cache, verifiers, sandbox starts, CPU",
        "longest attempt",
    ):
        assert line in " ".join(shown.split()) or line in shown, line


def test_a_killed_run_is_reported_with_what_is_there(killed: SyntheticRun) -> None:
    report = build_report(killed.journal)
    assert headline(report).endswith("killed, or still going")
    shown = text(report)
    assert "The one evaluation so far, at version 0, passes 20.0 %" in shown
    assert "live or interrupted" in shown


def test_an_empty_journal_says_what_is_missing(empty: Journal) -> None:
    shown = text(build_report(empty))
    for line in (
        "never started",
        "No batch has become ready yet.",
        "Nothing has been trained yet.",
        "No step has been measured yet; correction in force: not recorded.",
        "No trajectory has ended yet.",
        "No publication yet.",
        "No evaluation yet.",
        "No device has reported yet.",
        "Too early to advise",
    ):
        assert line in shown, line


def test_a_session_that_recorded_nothing_is_no_error(empty: Journal) -> None:
    empty.record(SessionRow(id=1, started=5.0, pid=1))
    report = build_report(empty)
    assert report.wall_s == 0.0
    assert "0 steps, 0:00 of wall time; killed, or still going" in text(report)


def test_json_holds_the_figures_and_adds_up(run: SyntheticRun) -> None:
    data = json.loads(to_json(build_report(run.journal, {0: {"path": 4.0}})))
    for batch in data["batches"]:
        assert sum(batch["parts_s"].values()) == pytest.approx(batch["ttb_s"], abs=1e-6)
    assert sum(data["ttb_parts_s"].values()) == pytest.approx(data["ttb_s"], abs=1e-6)
    assert data["batches"][0]["bounds_s"] == {"path": 4.0}
    assert data["accounting"]["clean"] is True
    assert data["outcomes"]["train"]["difference"] == 0
    assert set(data["device_seconds"]) == {"engine0", "trainer"}


def test_json_of_an_empty_journal_is_json(empty: Journal) -> None:
    assert json.loads(to_json(build_report(empty)))["batches"] == []


def test_runs_are_compared_side_by_side_with_ratios(run: SyntheticRun, killed: SyntheticRun) -> None:
    console = Console(file=io.StringIO(), width=140, color_system=None)
    console.print(compare([build_report(run.journal), build_report(killed.journal)]))
    lines = {" ".join(line.split()[:2]): line for line in console.file.getvalue().splitlines()}  # type: ignore[attr-defined]
    assert lines["wall time"].split()[-1].endswith("x")
    assert "evaluation, last" in " ".join(lines)
    assert lines["evaluation, last"].split()[-1] == "0.33x"


def test_what_does_not_fit_into_a_line_goes_on_in_the_next_and_nothing_is_cut(run: SyntheticRun) -> None:
    report = build_report(run.journal)
    long = replace(report.stragglers[0], task_id="relay-make-directory-train-0001")
    shown = text(replace(report, stragglers=(long,)), width=80)
    assert "…" not in shown
    assert long.id in shown


def test_the_first_line_says_that_there_are_alarms(run: SyntheticRun) -> None:
    report = build_report(run.journal)
    groups = replace(report.groups, complete=8, without_gradient=8)
    assert headline(replace(report, groups=groups)).endswith("; finished; 1 alarm")


def test_many_engines_share_a_column(run: SyntheticRun) -> None:
    report = build_report(run.journal)
    strip = report.devices.strips["engine0"]
    strips = {**report.devices.strips, **{f"engine{i}": strip for i in range(8)}}
    (table,) = device_hours(replace(report, devices=replace(report.devices, strips=strips))).tables
    assert table.columns == ("state", "in all", "8 engines", "trainer")
