from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from factories import make_statistics
from muster.orchestrator.config import ConcurrencyConfig
from muster.orchestrator.decisions.concurrency import Concurrency


def aimd(**options: object) -> Concurrency:
    return Concurrency(ConcurrencyConfig.model_validate({"policy": "aimd", "start": 16, **options}), slots=64)


def test_slots_alone_by_default() -> None:
    concurrency = Concurrency(ConcurrencyConfig(), slots=7)
    concurrency.observe([make_statistics(preemptions=50)], live=7, now=100.0)
    assert concurrency.limit == 7


def test_it_grows_while_the_limit_is_used_and_the_cache_holds() -> None:
    concurrency = aimd()
    for tick in range(5):
        concurrency.observe(
            [make_statistics(prompt_tokens=100 * tick, cached_tokens=95 * tick)], live=64, now=10.0 * tick
        )
    assert concurrency.limit == 16 + 4 * 4


def test_it_does_not_grow_while_nobody_uses_what_is_allowed() -> None:
    concurrency = aimd()
    for tick in range(5):
        concurrency.observe(
            [make_statistics(prompt_tokens=100 * tick, cached_tokens=95 * tick)], live=3, now=10.0 * tick
        )
    assert concurrency.limit == 16


def test_it_shrinks_when_turns_are_computed_again() -> None:
    concurrency = aimd()
    for tick in range(3):
        concurrency.observe(
            [make_statistics(prompt_tokens=100 * tick, cached_tokens=20 * tick)], live=16, now=10.0 * tick
        )
    assert concurrency.limit == int(int(16 * 0.8) * 0.8)


def test_one_interval_counts_once_however_often_it_looks() -> None:
    concurrency = aimd()
    for tick in range(40):
        concurrency.observe([make_statistics(prompt_tokens=100 * tick, cached_tokens=0)], live=16, now=0.1 * tick)
    assert concurrency.limit == 16


def test_memory_allows_what_fits() -> None:
    concurrency = Concurrency(ConcurrencyConfig(policy="memory", fill=0.5), slots=500)
    concurrency.observe([make_statistics(kv_capacity_tokens=100_000)] * 2, live=0, now=0.0)
    assert concurrency.limit == 500, "nothing has ended: nobody knows what one needs"
    concurrency.ended(4_000)
    assert concurrency.limit == 0.5 * 200_000 / 2_000


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 3), st.integers(0, 64))),
    st.integers(1, 64),
)
def test_the_limit_stays_between_the_least_and_the_slots(looks: list[tuple[int, int, int, int]], slots: int) -> None:
    concurrency = Concurrency(ConcurrencyConfig(policy="aimd", least=3), slots)
    prompt = cached = preempted = 0
    for tick, (new, share, preemptions, live) in enumerate(looks):
        prompt, cached, preempted = prompt + new, cached + min(new, share), preempted + preemptions
        statistics = make_statistics(prompt_tokens=prompt, cached_tokens=cached, preemptions=preempted)
        concurrency.observe([statistics], live=live, now=10.0 * tick)
        assert min(3, slots) <= concurrency.limit <= slots
