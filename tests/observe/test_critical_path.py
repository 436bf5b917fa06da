from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.journal import BatchRow, GroupRow, LaunchRow, SpanRow, TrajectoryRow
from muster.observe.critical_path import BatchTime, batch_time
from muster.observe.live.history import read_batch_time
from muster.observe.report import build_report
from muster.types import Stage
from observe.synthetic import SyntheticRun

EPOCH = 1_700_000_000.0


def batch(opened: float = 0.0, ready: float = 20.0, free: float = 0.0) -> BatchRow:
    return BatchRow(
        step=3,
        opened_at=EPOCH + opened,
        ready_at=EPOCH + ready,
        trainer_free_at=EPOCH + free,
        version=3,
        groups=["g0"],
        members=["g0.0"],
    )


def group(
    id: str = "g0", *, admitted: float = 1.0, ready: float | None = 20.0, replaces: str | None = None
) -> GroupRow:
    return GroupRow(
        id=id,
        task_id="t",
        submission=int(id[1:]),
        version=3,
        admitted_at=EPOCH + admitted,
        state="trained",
        replaces=replaces,
        ready_at=None if ready is None else EPOCH + ready,
    )


def launch(at: float, *, id: str = "g0.0", attempt: int = 0) -> LaunchRow:
    return LaunchRow(id=id, group_id=id[:2], task_id="t", sibling=0, attempt=attempt, at=EPOCH + at, purpose="train")


def trajectory(started: float, ended: float, *, id: str = "g0.0", attempt: int = 0) -> TrajectoryRow:
    return TrajectoryRow(
        id=id,
        group_id=id[:2],
        task_id="t",
        purpose="train",
        sibling=0,
        attempt=attempt,
        started=EPOCH + started,
        ended=EPOCH + ended,
        verdict="success",
        cause="verifier_passed",
        reward=1.0,
        evidence={},
        oldest_version=3,
        newest_version=3,
        sampled_tokens=5,
        prompt_tokens=10,
        cached_tokens=0,
        turns=[],
        snapshots=[],
        segments=b"",
    )


def spans(*pieces: tuple[Stage, float, float], owner: str = "g0.0") -> dict[str, list[SpanRow]]:
    return {owner: [SpanRow(owner=owner, stage=s, start=EPOCH + a, end=EPOCH + b) for s, a, b in pieces]}


def parts(time: BatchTime) -> dict[str, Any]:
    return {str(stage): pytest.approx(seconds, abs=1e-6) for stage, seconds in time.parts.items()}


instants = st.floats(-10.0, 40.0)
stages = st.sampled_from(list(Stage))


@given(
    st.lists(st.tuples(stages, instants, instants), max_size=40),
    st.tuples(instants, instants, instants, instants, instants),
    st.integers(0, 2),
    st.booleans(),
)
def test_parts_sum_to_the_ttb_whatever_the_rows_say(
    pieces: list[tuple[Stage, float, float]], marks: tuple[float, ...], attempt: int, replaced: bool
) -> None:
    admitted, first, launched, started, ended = marks
    own = spans(*((s, min(a, b), max(a, b)) for s, a, b in pieces))
    launches = {"g0.0": launch(launched, attempt=attempt), "g0.0x": launch(first, id="g0.0x")}
    time = batch_time(
        batch(),
        [group(admitted=admitted, replaces="g9" if replaced else None)],
        launches,
        [trajectory(started, ended, attempt=attempt)],
        own,
    )
    assert sum(time.parts.values()) == pytest.approx(time.ttb_s, abs=1e-6)
    assert all(seconds >= 0 for seconds in time.parts.values())


def test_each_instant_of_the_path_has_its_cause() -> None:
    own = spans((Stage.SANDBOX_START, 3, 5), (Stage.DECODE, 5, 9), (Stage.TOOL, 10, 14), (Stage.VERIFY, 14, 18))
    time = batch_time(batch(), [group()], {"g0.0": launch(2)}, [trajectory(3, 18)], own)
    assert time.parts == parts(time) | {
        Stage.ADMISSION: 3.0,  # until admitted, until launched, until started
        Stage.SANDBOX_START: 2.0,
        Stage.DECODE: 4.0,
        Stage.ASSEMBLY: 3.0,  # the gap inside, and from the end to ready
        Stage.TOOL: 4.0,
        Stage.VERIFY: 4.0,
    }
    assert (time.group, time.trajectory) == ("g0", "g0.0")


def test_time_before_a_replacement_of_unknown_age_is_refill() -> None:
    time = batch_time(
        batch(),
        [group(admitted=7, replaces="g9")],
        {"g0.0": launch(8)},
        [trajectory(8, 20)],
        spans((Stage.DECODE, 8, 20)),
    )
    assert time.parts == {Stage.REFILL: 7.0, Stage.ADMISSION: 1.0, Stage.DECODE: 12.0}


def test_a_line_of_replacements_is_refill_from_the_first_admission_on() -> None:
    first = replace(group("g1", admitted=3), state="dropped", closed_at=EPOCH + 6)
    second = replace(group("g2", admitted=6, replaces="g1"), state="dropped", closed_at=EPOCH + 8)
    third = group(admitted=9, replaces="g2")
    own = spans((Stage.DECODE, 10, 20))
    time = batch_time(batch(), [first, second, third], {"g0.0": launch(10)}, [trajectory(10, 20)], own)
    assert time.parts == {Stage.ADMISSION: 4.0, Stage.REFILL: 6.0, Stage.DECODE: 10.0}
    assert time.collected_s == 17.0


def test_attempts_that_infrastructure_lost_are_infra_retry() -> None:
    launches = {"g0.0": launch(2), "g0.0a1": launch(11, id="g0.0a1", attempt=1)}
    ended = [trajectory(2, 10), trajectory(11, 20, id="g0.0a1", attempt=1)]
    own = spans((Stage.DECODE, 11, 20), owner="g0.0a1")
    time = batch_time(batch(), [group()], launches, ended, own)
    assert time.parts == {Stage.ADMISSION: 2.0, Stage.INFRA_RETRY: 9.0, Stage.DECODE: 9.0}


def test_work_before_the_batch_opened_is_clipped() -> None:
    own = spans((Stage.DECODE, -5, 8), (Stage.VERIFY, 8, 20))
    time = batch_time(batch(), [group(admitted=-6)], {"g0.0": launch(-6)}, [trajectory(-5, 20)], own)
    assert time.parts == {Stage.DECODE: 8.0, Stage.VERIFY: 12.0}


def test_a_dropped_group_that_blocked_the_batch_is_its_critical_path() -> None:
    blocker = replace(group("g1", ready=None), state="dropped", closed_at=EPOCH + 19)
    ended = [trajectory(3, 9), trajectory(3, 19, id="g1.0")]
    own = spans((Stage.DECODE, 3, 9)) | spans((Stage.TOOL, 3, 19), owner="g1.0")
    launches = {"g0.0": launch(2), "g1.0": launch(2, id="g1.0")}
    time = batch_time(batch(), [group(ready=9), blocker], launches, ended, own)
    assert time.group == "g1"
    assert time.parts[Stage.TOOL] == 16.0


def test_a_batch_without_trajectories_is_all_assembly() -> None:
    time = batch_time(batch(), [], {}, [], {})
    assert time.parts == {Stage.ASSEMBLY: 20.0}
    assert time.trajectory is None


def test_what_the_trainer_felt_begins_when_it_was_free() -> None:
    own = spans((Stage.DECODE, 2, 12), (Stage.VERIFY, 12, 20))
    time = batch_time(batch(free=10.0), [group()], {"g0.0": launch(2)}, [trajectory(2, 20)], own)
    assert time.felt == {Stage.DECODE: 2.0, Stage.VERIFY: 8.0}
    assert sum(time.felt.values()) == time.trainer_wait_s == 10.0


def test_reading_one_batch_alone_gives_what_the_report_gives(run: SyntheticRun) -> None:
    report = build_report(run.journal)
    rows = run.journal.rows(BatchRow)
    assert [read_batch_time(run.journal, row) for row in rows] == list(report.batches)
    for time in report.batches:
        assert sum(time.parts.values()) == pytest.approx(time.ttb_s, abs=1e-6)
    assert report.batches[1].parts[Stage.REFILL] > 0
    assert any(Stage.INFRA_RETRY in time.parts for time in report.batches[2:4])
