from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from muster.journal import DeviceRow, LaunchRow, SpanRow
from muster.observe.devices import device_ledger, idle_while
from muster.observe.record import Record, RunSession, read
from muster.types import DeviceState, Stage
from observe.synthetic import SyntheticRun

S = DeviceState


def record(
    devices: list[DeviceRow], spans: list[SpanRow] | None = None, *, complete: bool = True, end: float = 100.0
) -> Record:
    owners: dict[str, tuple[SpanRow, ...]] = {}
    for span in spans or []:
        owners[span.owner] = (*owners.get(span.owner, ()), span)
    return Record(
        meta={},
        sessions=(RunSession(id=1, start=0.0, end=end, complete=complete),),
        groups={},
        launches={},
        drops={},
        trajectories={},
        spans=owners,
        devices=tuple(devices),
        batches=(),
        steps=(),
        metrics={},
        events=(),
        publications=(),
        evaluations=(),
    )


def row(state: S, start: float, end: float, device: str = "engine0") -> DeviceRow:
    return DeviceRow(device=device, state=state, start=start, end=end)


def span(stage: Stage, start: float, end: float, owner: str = "g0.0") -> SpanRow:
    return SpanRow(owner=owner, stage=stage, start=start, end=end)


def test_idle_is_split_at_the_very_instants_when_environments_were_busy() -> None:
    ledger = device_ledger(
        record(
            [row(S.IDLE, 0, 40), row(S.DECODE, 40, 60), row(S.IDLE, 60, 100)],
            [
                span(Stage.TOOL, 10, 15),
                span(Stage.VERIFY, 12, 20, "g0.1"),
                span(Stage.DECODE, 20, 90),
                span(Stage.TOOL, 55, 65),
            ],
        )
    )
    assert [(p.start, p.end, p.label) for p in ledger.strips["engine0"]] == [
        (0, 10, S.NO_WORK),
        (10, 20, S.ENV_WAIT),
        (20, 40, S.NO_WORK),
        (40, 60, S.DECODE),
        (60, 65, S.ENV_WAIT),
        (65, 100, S.NO_WORK),
    ]


def test_every_device_is_covered_from_start_to_end_of_every_session(run: SyntheticRun) -> None:
    rows = read(run.journal)
    ledger = device_ledger(rows)
    assert set(ledger.strips) == {"engine0", "trainer"}
    for device, strip in ledger.strips.items():
        assert sum(p.duration_s for p in strip) == pytest.approx(rows.wall_s, abs=1e-6)
        assert all(left.end <= right.start for left, right in pairwise(strip))
        assert S.IDLE not in ledger.seconds(device)


def test_a_long_silence_of_an_engine_is_an_outage_a_short_one_is_not() -> None:
    ledger = device_ledger(record([row(S.DECODE, 0, 50), row(S.DECODE, 51, 60)]))
    assert ledger.seconds("engine0") == {S.DECODE: 59.0, S.NO_WORK: 1.0, S.DOWN: 40.0}


def test_a_reported_outage_stays_down_however_short() -> None:
    ledger = device_ledger(record([row(S.DECODE, 0, 50), row(S.DOWN, 50, 51), row(S.DECODE, 51, 100)]))
    assert ledger.seconds("engine0")[S.DOWN] == 1.0


def test_overlapping_reports_count_once() -> None:
    ledger = device_ledger(record([row(S.DECODE, 0, 60), row(S.PUBLISH_PAUSE, 40, 60), row(S.DECODE, 60, 100)]))
    assert ledger.seconds("engine0") == {S.DECODE: 80.0, S.PUBLISH_PAUSE: 20.0}


@pytest.mark.parametrize(
    ("last", "present"),
    [(S.BATCH_WAIT, S.TRAIN), (S.TRAIN, S.PUBLISH), (S.EVALUATE, S.BATCH_WAIT)],
)
def test_a_killed_trainer_was_in_the_state_after_its_last(last: S, present: S) -> None:
    ledger = device_ledger(record([row(last, 0, 70, "trainer")], complete=False))
    assert ledger.seconds("trainer") == {last: 70.0, present: 30.0}


def test_a_live_trajectory_without_spans_counts_as_in_its_environment() -> None:
    launch = LaunchRow(id="g0.0", group_id="g0", task_id="t", sibling=0, attempt=0, at=30.0, purpose="train")
    rows = replace(record([row(S.IDLE, 0, 100)], complete=False), launches={"g0.0": launch})
    assert device_ledger(rows).seconds("engine0") == {S.NO_WORK: 30.0, S.ENV_WAIT: 70.0}


def test_idle_engines_are_measured_against_the_trainer() -> None:
    ledger = device_ledger(
        record(
            [
                row(S.DECODE, 0, 60),
                row(S.IDLE, 60, 100),
                row(S.BATCH_WAIT, 0, 70, "trainer"),
                row(S.TRAIN, 70, 100, "trainer"),
            ]
        )
    )
    assert idle_while(ledger, frozenset({S.TRAIN})) == 30.0


def test_mean_running_is_request_seconds_over_busy_seconds() -> None:
    ledger = device_ledger(
        record(
            [row(S.DECODE, 0, 50), row(S.IDLE, 50, 100)], [span(Stage.DECODE, 0, 50), span(Stage.DECODE, 0, 25, "g0.1")]
        )
    )
    assert ledger.mean_running == 1.5
