"""The emulated server: what a batch costs, who shares what, who waits, who must go."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from lab.emulated.books import TIMING, Driven, balanced, config, prompt
from muster.engine.port import CachePolicy, InFlight, Pause
from muster.engine.timing import pairs_of
from muster.errors import UserError
from muster.types import DeviceState, Version

NEXT = Version(number=1, digest="next")


def test_a_request_alone_takes_its_prompt_and_one_step_for_each_further_token() -> None:
    driven = Driven(config())
    driven.submit("a", prompt(40), 11)
    driven.run()
    expected = TIMING.prompt_s(40, 64) + TIMING.decode_s(10, 1, 41)
    assert driven.ended_at["a"] == pytest.approx(expected)
    completion = driven.completions["a"]
    assert (completion.prefill_s, completion.decode_s) == (
        pytest.approx(TIMING.prompt_s(40, 64)),
        pytest.approx(TIMING.decode_s(10, 1, 41)),
    )


def test_a_long_prompt_is_computed_in_chunks_beside_the_others_decoding() -> None:
    driven = Driven(config())
    driven.submit("a", prompt(10), 20)
    driven.run_until(0.001)
    driven.submit("b", prompt(100, 1), 1)
    driven.run()
    first = TIMING.prompt_s(10, 64)
    # b's 100 tokens need two steps of 64, in each of which a decodes one token
    one = TIMING.decode_s(1, 1, 11) + TIMING.chunk_s(63, pairs_of(0, 63))
    two = TIMING.decode_s(1, 1, 12) + TIMING.chunk_s(37, pairs_of(63, 37))
    assert driven.ended_at["b"] == pytest.approx(first + one + two)
    assert driven.ended_at["a"] == pytest.approx(first + one + two + TIMING.decode_s(17, 1, 13))


def test_the_newest_request_gives_way_when_memory_is_short_and_says_the_same_in_the_end() -> None:
    roomy, short = Driven(config()), Driven(config(kv_capacity_tokens=160))
    for driven in (roomy, short):
        driven.submit("a", prompt(40, 1), 60)
        driven.submit("b", prompt(40, 2), 60)
        driven.run()
    assert (roomy.core.preemptions, short.core.preemptions) == (0, 1)
    for name in ("a", "b"):
        np.testing.assert_array_equal(roomy.completions[name].tokens_T, short.completions[name].tokens_T)
        np.testing.assert_array_equal(roomy.completions[name].logprobs_T, short.completions[name].logprobs_T)
    assert short.completions["a"].recompute_s == 0 < short.completions["b"].recompute_s
    assert short.core.statistics(short.core.now, take_intervals=False).recomputed_tokens > 0


def test_the_least_recently_used_prefix_is_evicted_and_only_as_much_as_needed() -> None:
    driven = Driven(config(kv_capacity_tokens=192))
    for seed in (1, 2):
        driven.submit(f"old{seed}", prompt(65, seed), 1)
        driven.run()
    driven.submit("new", prompt(97, 3), 1)  # 7 blocks; 4 are free
    driven.run()
    for name, seed, cached in (("again2", 2, 64), ("again1", 1, 16)):
        driven.submit(name, prompt(65, seed), 1)
        driven.run()
        assert driven.completions[name].cached_tokens == cached


def test_requests_wait_for_a_place_and_for_memory_in_order_of_arrival() -> None:
    driven = Driven(config(max_running=1))
    for name in "abc":
        driven.submit(name, prompt(10, ord(name)), 5)
    driven.run()
    assert list(driven.completions) == ["a", "b", "c"]
    assert driven.completions["c"].queue_s == pytest.approx(driven.ended_at["b"])


def test_siblings_wait_for_the_first_to_compute_their_prompt_and_strangers_do_not() -> None:
    driven = Driven(config(block_tokens=1))
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        driven.submit(name, prompt(50, seed), 2)
    driven.run()
    assert [driven.completions[n].cached_tokens for n in "abc"] == [0, 49, 0]


def test_a_reply_ends_at_a_stop_token_or_with_the_policy() -> None:
    driven = Driven(
        config(), policy=lambda tokens, session, version: {"a": [5, 6, 2, 7], "b": [5], "c": []}[session.id]
    )
    for name in "abc":
        driven.submit(name, prompt(10), 3, stop_tokens=(2,))
    driven.run()
    assert [driven.completions[n].tokens_T.tolist() for n in "abc"] == [[5, 6, 2], [5], []]
    assert [driven.completions[n].finish for n in "abc"] == ["stop"] * 3


def test_an_arrival_waits_for_the_step_that_runs() -> None:
    driven = Driven(config())
    driven.submit("a", prompt(10), 50)
    driven.run_until(0.5)
    assert driven.core.now >= 0.5
    elapsed = driven.core.now - TIMING.prompt_s(10, 64)
    steps = TIMING.decode_steps(elapsed, 1, 11)
    assert TIMING.decode_s(steps, 1, 11) == pytest.approx(elapsed)
    assert driven.core.now - 0.5 <= TIMING.decode_s(1, 1, 61)


def test_statistics_within_a_stride_count_the_steps_that_have_ended() -> None:
    driven = Driven(config())
    driven.submit("a", prompt(10), 50)
    driven.core.begin(0.0)
    driven.core.finish()
    driven.core.begin(driven.core.now)
    now = driven.core.now + TIMING.decode_s(7, 1, 11) + 0.001
    assert driven.core.statistics(now, take_intervals=False).generated_tokens == 8


def test_a_commit_that_keeps_the_cache_lets_held_requests_go_on_but_no_one_else_share_it() -> None:
    driven = Driven(config())
    driven.submit("a", prompt(40), 30)
    driven.run_until(0.2)
    publish(driven, CachePolicy.KEEP)
    driven.submit("b", prompt(40), 5)
    driven.run()
    versions = driven.completions["a"].versions_T.tolist()
    assert versions == sorted(versions)
    assert set(versions) == {0, 1}
    assert driven.completions["b"].cached_tokens == 0
    driven.submit("c", prompt(40), 5)
    driven.run()
    assert driven.completions["c"].cached_tokens == 32


@pytest.mark.parametrize("cache", [CachePolicy.RECOMPUTE, CachePolicy.FLUSH])
def test_a_commit_that_recomputes_prefills_what_was_held_once_more(cache: CachePolicy) -> None:
    driven = Driven(config())
    driven.submit("a", prompt(40), 30)
    driven.run_until(0.2)
    pause = publish(driven, cache)
    assert driven.core.statistics(driven.core.now, take_intervals=False).kv_used_tokens == 0
    driven.run()
    assert driven.completions["a"].recompute_s > 0
    after = driven.core.statistics(driven.core.now, take_intervals=False)
    assert after.recomputed_tokens == pause.held_tokens >= 40


def test_a_commit_that_shares_lets_others_start_from_what_the_old_weights_computed() -> None:
    driven = Driven(config())
    driven.submit("a", prompt(40), 30)
    driven.run_until(0.2)
    publish(driven, CachePolicy.SHARE)
    driven.submit("b", prompt(40), 5)
    driven.run()
    assert driven.completions["b"].cached_tokens == 32
    assert driven.completions["b"].versions_T.tolist() == [1] * 5
    assert driven.completions["a"].recompute_s == 0


def test_a_finishing_pause_lets_in_what_it_preempted_and_nobody_else() -> None:
    driven = Driven(config(kv_capacity_tokens=160))
    paused: list[Pause] = []
    driven.submit("a", prompt(40, 1), 60)
    driven.submit("b", prompt(40, 2), 60)
    driven.run_until(0.1)
    driven.core.pause(InFlight.FINISH, paused.append)
    driven.submit("late", prompt(10, 3), 5)
    driven.run()
    assert driven.core.preemptions == 1
    assert paused == [Pause(finished=2)]
    assert set(driven.completions) == {"a", "b"}
    driven.core.resume()
    driven.run()
    assert set(driven.completions) == {"a", "b", "late"}


def test_device_intervals_split_a_mixed_step_and_sum_to_the_time() -> None:
    driven = Driven(config())
    driven.submit("a", prompt(10), 40)
    driven.run_until(0.1)
    driven.submit("b", prompt(60, 1), 40)
    driven.run()
    intervals = driven.core.statistics(driven.core.now, take_intervals=True).intervals
    assert sum(i.end - i.start for i in intervals) == pytest.approx(driven.core.now)
    prefill_s = sum(i.end - i.start for i in intervals if i.state is DeviceState.PREFILL)
    alone_s = TIMING.prompt_s(10, 64) + TIMING.chunk_s(60, pairs_of(0, 60))
    assert prefill_s == pytest.approx(alone_s)


@pytest.mark.parametrize(("length", "id_"), [(0, 5), (128, 5), (10, 64), (10, -1)])
def test_tokens_that_cannot_be_served_are_the_users_mistake(length: int, id_: int) -> None:
    with pytest.raises(UserError, match="token_ids"):
        Driven(config()).submit("a", np.full(length, id_, np.int32), 5)


def publish(driven: Driven, cache: CachePolicy) -> Pause:
    core, pauses = driven.core, list[Pause]()
    core.updates.stage(NEXT)
    core.pause(InFlight.HOLD, pauses.append)
    assert core.commit(NEXT, cache) == NEXT
    balanced(core)
    core.resume()
    return pauses[0]


def play(seed: int, *, single_steps: bool) -> Driven:
    """A small world: shared beginnings, short memory, aborts, publications."""
    rng = np.random.default_rng(seed)
    block = int(rng.choice([1, 4, 16]))
    capacity = 128 + 2 * block + 16 * int(rng.integers(0, 10))
    driven = Driven(config(block_tokens=block, kv_capacity_tokens=capacity, max_running=6), single_steps=single_steps)
    events: list[tuple[float, int, Callable[[], object]]] = []

    def at(when: float, act: Callable[[], object]) -> None:
        events.append((when, len(events), act))

    for index in range(int(rng.integers(1, 14))):
        name, arrives, new = str(index), float(rng.uniform(0, 3)), int(rng.integers(1, 41))
        beginning = prompt(60, int(rng.integers(4)))[: int(rng.integers(1, 61))]
        tokens = np.concatenate([beginning, prompt(int(rng.integers(0, 21)), 100 + index)])
        at(arrives, partial(driven.submit, name, tokens, new, at=arrives))
        if rng.random() < 0.4:
            at(arrives + float(rng.uniform(0, 2)), partial(driven.core.abort, [name]))
    for number in range(1, int(rng.integers(1, 5))):
        pauses, in_flight = float(rng.uniform(0, 4)), list(InFlight)[int(rng.integers(3))]
        cache = list(CachePolicy)[int(rng.integers(len(CachePolicy)))]
        at(pauses, partial(driven.core.pause, in_flight, lambda pause: None))
        at(pauses + 0.1, partial(change, driven, Version(number=number, digest="v"), cache))
    for when, _, act in sorted(events, key=lambda event: event[:2]):
        driven.run_until(when)
        act()
        balanced(driven.core)
    driven.core.resume()
    driven.run()
    assert not driven.core._batch.own_blocks
    assert driven.core._batch.cache.used == driven.core._batch.cache.idle
    return driven


def change(driven: Driven, version: Version, cache: CachePolicy) -> None:
    """Commit if the pause has taken effect by now."""
    if driven.core.paused:
        driven.core.updates.stage(version)
        driven.core.commit(version, cache)
    driven.core.resume()


def same_by_single_steps(seed: int) -> int:
    """Play a world in strides and step by step, and compare; returns how often somebody had to give way."""
    strides, steps = (play(seed, single_steps=single) for single in (False, True))
    assert strides.completions.keys() == steps.completions.keys()
    assert not strides.core._live, "every request ends"
    for name, completion in strides.completions.items():
        other = steps.completions[name]
        assert completion.tokens_T.tolist() == other.tokens_T.tolist()
        assert completion.versions_T.tolist() == other.versions_T.tolist()
        assert completion.cached_tokens == other.cached_tokens
        assert strides.ended_at[name] == pytest.approx(steps.ended_at[name], abs=1e-6)
    return strides.core.preemptions


@pytest.mark.parametrize("first", range(0, 600, 100))
def test_strides_are_exactly_many_single_steps_and_the_books_balance_after_each(first: int) -> None:
    preemptions = sum(same_by_single_steps(seed) for seed in range(first, first + 100))
    assert preemptions > 5, "memory was short in some"


def test_who_gave_way_is_let_in_as_soon_as_it_fits() -> None:
    """A sibling cached the same tokens meanwhile, so that giving way freed more than was missing."""
    assert same_by_single_steps(4011) > 0


def test_a_row_of_mixed_steps_changes_the_devices_state_once_a_step() -> None:
    driven = Driven(config())
    driven.submit("a", prompt(10), 40)
    driven.run_until(0.1)
    driven.submit("b", prompt(120, 1), 1)  # two steps beside a's decoding
    driven.run()
    states = [i.state for i in driven.core.statistics(driven.core.now, take_intervals=True).intervals]
    prefill, decode = DeviceState.PREFILL, DeviceState.DECODE
    assert states == [prefill, decode, prefill, decode]


def test_what_is_computed_again_after_a_commit_keeps_its_order() -> None:
    driven = Driven(config(max_step_tokens=256))
    for seed, name in enumerate("abc"):
        driven.submit(name, prompt(40, seed), 30)
    driven.run_until(0.3)
    publish(driven, CachePolicy.RECOMPUTE)
    driven.core.begin(driven.core.now)
    assert [request.id for request in driven.core._batch.running] == ["a", "b", "c"]


def test_a_reply_of_one_token_leaves_its_whole_prompt_in_the_cache() -> None:
    driven = Driven(config())
    driven.submit("a", prompt(32), 1)
    driven.run()
    driven.submit("b", np.concatenate([prompt(32), prompt(10, 1)]), 1)
    driven.run()
    assert driven.completions["b"].cached_tokens == 32


def test_who_finds_no_room_in_the_step_waits_and_keeps_nothing_of_the_cache() -> None:
    driven = Driven(config(max_step_tokens=64))
    driven.submit("before", prompt(65, 1), 1)
    driven.run()
    driven.submit("long", prompt(120, 2), 1, at=driven.core.now)
    driven.submit("next", prompt(65, 1), 1, at=driven.core.now)
    driven.core.begin(driven.core.now)
    assert [request.id for request in driven.core._batch.running] == ["long"]
    assert driven.core._batch.cache.idle == 64
    driven.core.finish()
    driven.run()
    waited = driven.completions["next"]
    first_step_s = TIMING.step_s + TIMING.chunk_s(64, pairs_of(0, 64))
    assert (waited.cached_tokens, waited.queue_s) == (64, pytest.approx(first_step_s))


def test_a_sessions_history_is_recognised_by_where_it_lies_and_what_is_new_is_looked_at() -> None:
    text = prompt(120)
    driven = Driven(config(), policy=lambda tokens, session, version: text[len(tokens) :])
    for length in (20, 45, 70):
        driven.submit(str(length), text[:length], 10, session="s")
        driven.run()
    cache = driven.core._batch.cache
    assert cache.seen(text[:100]) == cache.match(text[:100], 0).cached == 64
    assert cache.seen(text[:100].copy()) == 0
    text[90] = 64
    with pytest.raises(UserError, match="ids must lie in"):
        driven.core.check(text[:100])
