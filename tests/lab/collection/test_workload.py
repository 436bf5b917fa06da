from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from muster.lab.collection.workload import Lognormal, WorkloadConfig, group_programs, programs

SMALL = WorkloadConfig(groups=3, group_size=4)


def test_the_same_seed_gives_the_same_programs_in_any_order() -> None:
    batch = programs(SMALL, seed=7)
    assert [group_programs(SMALL, 7, n) for n in (2, 0, 1)] == [batch[2], batch[0], batch[1]]
    assert programs(SMALL, seed=8) != batch


def test_siblings_share_their_prompt_and_differ_in_what_they_do() -> None:
    (first, *others), *_ = programs(SMALL, seed=1)
    assert all(p.prompt_tokens == first.prompt_tokens for p in others)
    assert len({p.turns for p in (first, *others)}) == 4


def test_another_visit_is_other_attempts_at_the_same_task() -> None:
    now, before = group_programs(SMALL, 1, 0), group_programs(SMALL, 1, 0, visit=1)
    assert now[0].prompt_tokens == before[0].prompt_tokens
    assert {p.turns for p in now}.isdisjoint({p.turns for p in before})


@given(seed=st.integers(0, 1000), context=st.integers(9000, 20_000))
@settings(max_examples=20, deadline=None)
def test_no_program_outgrows_its_context_and_every_group_has_a_gradient(seed: int, context: int) -> None:
    config = WorkloadConfig(groups=2, group_size=4, max_context_tokens=context)
    for group in programs(config, seed):
        assert len({p.reward for p in group}) > 1
        for program in group:
            assert program.turns
            assert program.final_tokens <= context
            assert all(t.reply_tokens >= 1 and t.tool_s <= config.tool_s.cap for t in program.turns)


def test_groups_without_gradient_are_as_frequent_as_declared() -> None:
    config = WorkloadConfig(groups=400, group_size=2, no_gradient=0.25, turns=Lognormal(median=1))
    flat = sum(len({p.reward for p in group}) == 1 for group in programs(config, seed=0))
    assert 70 <= flat <= 130


def test_siblings_are_as_alike_as_declared() -> None:
    def correlation(shared: float) -> float:
        turns = Lognormal(median=20, sigma=1.0, cap=200)
        config = WorkloadConfig(group_size=2, groups=600, turns=turns, shared_variance=shared)
        logs = np.log([[len(p.turns) for p in group] for group in programs(config, seed=0)])
        return float(np.corrcoef(logs.T)[0, 1])

    assert correlation(0.0) == pytest.approx(0.0, abs=0.12)
    assert correlation(0.6) == pytest.approx(0.6, abs=0.12)


def test_the_published_medians_come_out_of_the_defaults() -> None:
    turns = [t for group in programs(WorkloadConfig(groups=200), seed=0) for p in group for t in p.turns]
    lengths = [len(p.turns) for group in programs(WorkloadConfig(groups=200), seed=0) for p in group]
    assert np.median(lengths) == pytest.approx(20, rel=0.2)
    assert np.median([t.tool_s for t in turns]) == pytest.approx(0.85, rel=0.1)
    assert np.median([t.reply_tokens for t in turns]) == pytest.approx(220, rel=0.1)
    growth = np.mean([t.reply_tokens + t.observation_tokens for t in turns])
    assert growth == pytest.approx(1700, rel=0.1), "context grows by 1.7 k tokens a step"


def test_long_tasks_are_solved_less_often() -> None:
    config = WorkloadConfig(groups=400, group_size=4, solve_slope=2.0, shared_variance=1.0)
    batch = sorted(programs(config, seed=0), key=lambda group: len(group[0].turns))
    short, long = (np.mean([p.reward for g in part for p in g]) for part in (batch[:100], batch[-100:]))
    assert short > long + 0.2


def test_a_quantile_is_what_its_share_of_the_draws_lies_below() -> None:
    boots = Lognormal(median=23, sigma=0.53, cap=97)
    assert boots.quantile(0.5) == pytest.approx(23)
    assert boots.quantile(0.999999) == 97
    draws = [boots.draw(np.random.default_rng(i)) for i in range(500)]
    assert np.mean(np.array(draws) < boots.quantile(0.9)) == pytest.approx(0.9, abs=0.05)


def test_a_context_without_room_for_a_reply_is_refused() -> None:
    with pytest.raises(ValidationError, match="holds no reply after a prompt"):
        WorkloadConfig(max_context_tokens=4000)
