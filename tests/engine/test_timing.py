"""The closed forms are the sums that they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.engine.timing import EngineTiming, Work, pairs_of

TIMING = EngineTiming(step_s=0.01, row_s=1e-4, context_s=1e-6, prefill_s=2e-4, pair_s=1e-8)


def step_by_step(steps: int, rows: int, context: int) -> list[float]:
    """Times at which steps end, summed one by one."""
    ends, now = [0.0], 0.0
    for step in range(steps):
        now += TIMING.step_s + TIMING.row_s * rows + TIMING.context_s * (context + step * rows)
        ends.append(now)
    return ends


@given(steps=st.integers(0, 200), rows=st.integers(1, 300), context=st.integers(0, 1_000_000))
def test_a_stride_takes_as_long_as_its_steps(steps: int, rows: int, context: int) -> None:
    assert TIMING.decode_s(steps, rows, context) == pytest.approx(step_by_step(steps, rows, context)[-1])


@given(
    steps=st.integers(0, 100),
    part=st.floats(0.01, 0.99),
    rows=st.integers(1, 300),
    context=st.integers(0, 1_000_000),
    flat=st.booleans(),
)
def test_the_steps_within_a_time_are_the_stride_inverted(
    steps: int, part: float, rows: int, context: int, flat: bool
) -> None:
    timing = TIMING.model_copy(update={"context_s": 0.0}) if flat else TIMING
    end, following = timing.decode_s(steps, rows, context), timing.decode_s(steps + 1, rows, context)
    assert timing.decode_steps(end, rows, context) == steps
    assert timing.decode_steps(end + part * (following - end), rows, context) == steps


@given(start=st.integers(0, 1000), sizes=st.lists(st.integers(1, 500), min_size=1, max_size=5))
def test_attention_pairs_do_not_depend_on_how_a_prompt_is_cut(start: int, sizes: list[int]) -> None:
    at, total = start, 0.0
    for size in sizes:
        total += pairs_of(at, size)
        at += size
    assert total == pytest.approx(pairs_of(start, sum(sizes)))


def test_work_costs_what_the_steps_cost() -> None:
    work = Work(steps=7, prefill=300, pairs=pairs_of(0, 300))
    work.add_decode(5, 3, 400)
    seconds = TIMING.decode_s(5, 3, 400) + 2 * TIMING.step_s + TIMING.chunk_s(300, pairs_of(0, 300))
    assert work.seconds(TIMING) == pytest.approx(seconds)
