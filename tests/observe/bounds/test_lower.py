from __future__ import annotations

import heapq
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.journal import BatchRow, SpanRow, TrajectoryRow
from muster.observe.bounds.fit import bounds_by_batch, cohort_of, fit_capacity
from muster.observe.bounds.lower import Capacity, Cohort, lower_bounds
from muster.types import Stage
from observe.synthetic import write_run


def cohort(output: list[float], tool: list[float] | None = None) -> Cohort:
    n = len(output)
    return Cohort(
        output_tokens_N=np.array(output),
        prompt_tokens_N=np.full(n, 100.0),
        sandbox_s_N=np.full(n, 1.0),
        tool_s_N=np.array(tool or [2.0] * n),
        verify_s_N=np.full(n, 0.5),
        context_decode_N=np.full(n, 1000.0),
        context_tool_N=np.full(n, 500.0),
        cpu_s_N=np.full(n, 3.0),
    )


FULL = Capacity(
    stream_decode_rate=10.0,
    decode_rate=100.0,
    prefill_rate=1000.0,
    sandbox_slots=2,
    verifier_slots=1,
    kv_tokens=1000,
    boots_per_s=2.0,
    cores=2,
)


def test_every_bound_follows_its_formula() -> None:
    bounds = lower_bounds(cohort([100.0, 300.0]), FULL)
    assert bounds.seconds == pytest.approx(
        {
            "engine": max(400 / 100, 200 / 1000),
            "path": 1 + 100 / 1000 + 300 / 10 + 2 + 0.5,
            "slots": (2 * 3.6 + 40) / 2,
            "kv": 2000 / 10 / 1000,
            "verify": 1.0 + (1 + 0.1 + 10 + 2),
            "boot": 33.6,  # the longest first; the other starts half a second later and is long done
            "cpu": 6 / 2,
        }
    )
    assert bounds.unknown == ()
    assert bounds.active == "path"
    assert bounds.score(67.2) == pytest.approx(2.0)


def test_a_slot_that_is_free_meanwhile_lowers_the_slot_bound() -> None:
    capacity = Capacity(stream_decode_rate=10.0, sandbox_slots=2, hold_while_thinking=False, hold_while_verifying=False)
    assert lower_bounds(cohort([100.0, 300.0]), capacity).seconds["slots"] == 3.0 + 0.5


def test_some_slot_must_hold_several_of_the_longest_one_after_the_other() -> None:
    three = Capacity(stream_decode_rate=10.0, sandbox_slots=2)
    assert lower_bounds(cohort([300.0, 300.0, 300.0]), three).seconds["slots"] == pytest.approx(2 * 33.5)


def test_starts_in_a_row_are_followed_by_the_shortest_path_at_least() -> None:
    slow = Capacity(stream_decode_rate=10.0, boots_per_s=0.1)
    assert lower_bounds(cohort([100.0, 100.0, 200.0]), slow).seconds["boot"] == pytest.approx(20 + 13.5)


def test_a_cache_pinned_during_commands_is_held_longer() -> None:
    pinned = Capacity(stream_decode_rate=10.0, kv_tokens=1000, pin_cache_during_tools=True)
    assert lower_bounds(cohort([100.0, 300.0]), pinned).seconds["kv"] == pytest.approx((200 + 1000) / 1000)


def test_an_unknown_capacity_is_named_not_guessed() -> None:
    bounds = lower_bounds(cohort([100.0]), Capacity(decode_rate=100.0))
    assert set(bounds.seconds) == {"engine"}
    assert bounds.unknown == ("path", "slots", "kv", "verify", "boot", "cpu")


def test_nothing_known_has_no_score() -> None:
    bounds = lower_bounds(cohort([100.0]), Capacity())
    assert (bounds.active, bounds.limit_s, bounds.score(5.0)) == (None, None, None)
    assert lower_bounds(cohort([]), FULL).seconds == {}


@given(st.lists(st.floats(1.0, 500.0), min_size=1, max_size=40), st.integers(1, 8))
def test_list_scheduling_stays_between_the_bound_and_graham(lengths: list[float], slots: int) -> None:
    work = cohort(lengths)
    capacity = Capacity(stream_decode_rate=10.0, prefill_rate=1e12, sandbox_slots=slots)
    free = [0.0] * slots
    for tokens in lengths:
        heapq.heappush(free, heapq.heappop(free) + 1.0 + tokens / 10 + 2.0 + 0.5)
    score = lower_bounds(work, capacity).score(max(free))
    assert score is not None
    assert 1 - 1e-9 <= score <= 2 - 1 / slots + 1e-9


def test_a_journal_gives_bounds_for_its_batches(tmp_path: Path) -> None:
    with write_run(tmp_path / "journal.sqlite").journal as journal:
        bounds = bounds_by_batch(journal)
        batches = {b.step: b for b in journal.rows(BatchRow)}
    assert set(bounds) == set(batches)
    for step, batch in batches.items():
        assert bounds[step].unknown == ("boot", "cpu")
        assert (bounds[step].score(batch.ready_at - batch.opened_at) or 0) > 0.9


def test_a_batch_that_began_before_it_opened_has_no_bound(tmp_path: Path) -> None:
    with write_run(tmp_path / "journal.sqlite").journal as journal:
        batch = journal.rows(BatchRow, "step = 3")[0]
        journal.record(replace(batch, opened_at=batch.opened_at + 5))
        assert 3 not in bounds_by_batch(journal)


def test_rates_are_those_that_were_reached() -> None:
    spans = {
        f"g0.{i}": [
            SpanRow(owner=f"g0.{i}", stage=Stage.PREFILL, start=0.0, end=2.0),
            SpanRow(owner=f"g0.{i}", stage=Stage.DECODE, start=2.0, end=12.0),
        ]
        for i in range(3)
    }
    rows = [row(f"g0.{i}", sampled=100, prompt=50) for i in range(3)]
    capacity = fit_capacity(rows, spans, {"sandbox": {"slots": 4}})
    assert capacity.stream_decode_rate == pytest.approx(10.0)
    assert capacity.decode_rate == pytest.approx(30.0)
    assert capacity.prefill_rate is None, "no span shows how fast a batching engine could prefill"
    assert capacity.sandbox_slots == 4
    assert capacity.kv_tokens is None


def test_perfect_reuse_prefills_the_shared_prompt_once_a_group() -> None:
    turns = [
        {"index": 0, "reply": "", "command": None, "observation": "", "prompt_tokens": 50, "sampled_tokens": 10},
        {"index": 1, "reply": "", "command": None, "observation": "", "prompt_tokens": 80, "sampled_tokens": 5},
    ]
    work = cohort_of([row("g0.0", turns=turns), row("g0.1", turns=turns), row("g1.0", turns=turns)], {})
    assert work.prompt_tokens_N.tolist() == [70.0, 20.0, 70.0]
    assert work.context_decode_N is not None
    assert work.context_decode_N.tolist() == [50 * 10 + 80 * 5] * 3


def row(id: str, *, sampled: int = 15, prompt: int = 0, turns: list[dict[str, object]] | None = None) -> TrajectoryRow:
    return TrajectoryRow(
        id=id,
        group_id=id.split(".")[0],
        task_id="t",
        purpose="train",
        sibling=0,
        attempt=0,
        started=0.0,
        ended=12.0,
        verdict="success",
        cause="verifier_passed",
        reward=1.0,
        evidence={},
        oldest_version=0,
        newest_version=0,
        sampled_tokens=sampled,
        prompt_tokens=prompt,
        cached_tokens=0,
        turns=turns or [],
        snapshots=[],
        segments=b"",
    )


def test_batches_that_overlap_have_only_the_bounds_of_what_each_takes() -> None:
    overlapping = lower_bounds(cohort([100.0, 300.0]), FULL, overlapping=True)
    assert overlapping.seconds == pytest.approx(
        {"engine": 4.0, "slots": (2 * 3.6 + 40) / 2, "kv": 0.2, "verify": 1.0, "boot": 1.0, "cpu": 3.0}
    )
    whole = lower_bounds(cohort([100.0, 300.0]), FULL).seconds
    assert all(seconds <= whole[name] for name, seconds in overlapping.seconds.items())
