"""Prefix cache that a request starts from, checked against a store that remembers what each row was computed from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine.embedded.kv_store import KVStore
from muster.engine.embedded.prefix_cache import PROMOTE_TOKENS, Placement, PrefixCache, Slot, distinct_tokens
from muster.model.config import LlamaConfig
from muster.types import Ints

ONE = LlamaConfig(
    vocab_size=9, width=1, mlp_width=1, layers=1, heads=1, kv_heads=1, head_width=1, context=1024, tied_embeddings=True
)


class Simulated:
    """A cache with its store; the "keys" of a token are a hash of the whole sequence up to it."""

    def __init__(self, slots: int = 4, max_len: int = 512, prefix_capacity: int = 1024) -> None:
        self.cache = PrefixCache(slots, max_len, prefix_capacity)
        self.store = KVStore(ONE, slots, max_len, torch.float32)
        self.computed = 0

    def start(self, tokens: Ints, session: str = "", version: int = 0) -> Placement | None:
        placement = self.cache.place(tokens, session, version)
        if placement is not None:
            self.store.place(placement)
            self.store.forget(self.cache)
            self.check(placement.slot, tokens, placement.cached, version)
        return placement

    def compute(self, slot: Slot, tokens: Ints, version: int = 0) -> None:
        """Feed everything that is not cached."""
        rows = keys(tokens, version)[slot.filled :]
        self.store.slots_LSHCW[0, slot.index, 0, slot.tail : slot.tail + len(rows), 0] = torch.from_numpy(rows)
        self.computed += len(rows)
        slot.filled = len(tokens)

    def run(self, tokens: Ints, session: str = "", version: int = 0) -> Placement:
        placement = self.start(tokens, session, version)
        assert placement is not None
        self.compute(placement.slot, tokens, version)
        self.cache.release(placement.slot, keep=True)
        return placement

    def check(self, slot: Slot, tokens: Ints, length: int, version: int) -> None:
        """Assert that attention would read, for the first `length` tokens, what was computed from them."""
        own = self.store.slots_LSHCW[0, slot.index, 0, : slot.tail, 0]
        parts = [own]
        if slot.prefix is not None:
            parts.insert(0, self.store.prefix(slot.prefix)[0, 0, : slot.shared, 0])
        read = torch.cat(parts)[:length].numpy()
        np.testing.assert_array_equal(read, keys(tokens, version)[:length])


def keys(tokens: Ints, version: int) -> np.ndarray:
    state, out = 17 + version, []
    for token in tokens.tolist():
        state = (state * 31 + token + 1) % 1_000_003
        out.append(state)
    return np.array(out, dtype=np.float32)


def ints(*parts: Sequence[int] | Ints) -> Ints:
    return np.concatenate([np.asarray(p, dtype=np.int32) for p in parts])


def test_siblings_wait_for_the_first_and_then_share_its_prompt() -> None:
    s = Simulated()
    prompt = ints(range(200))
    first = s.start(prompt, "a")
    assert first is not None and first.cached == 0
    assert s.start(prompt, "b") is None
    s.compute(first.slot, prompt)
    second = s.start(prompt, "b")
    assert second is not None and second.cached == 199
    assert second.rebase is not None and second.slot.prefix is first.slot.prefix
    s.check(first.slot, prompt, 200, 0)
    third = s.start(prompt, "c")
    assert third is not None and third.rebase is None and third.copy is None
    assert s.computed == 200


def test_a_short_common_beginning_is_copied_and_not_promoted() -> None:
    s = Simulated()
    s.run(ints(range(50)), "a")
    placement = s.run(ints(range(40), [99, 98]), "b")
    assert placement.cached == 40
    assert placement.copy is not None and placement.rebase is None


def test_another_group_reads_part_of_a_prefix() -> None:
    s = Simulated()
    few_shot = range(2 * PROMOTE_TOKENS)
    for name in "ab":
        s.run(ints(few_shot, range(500, 530)), name)
    other = s.run(ints(few_shot, range(600, 630)), "c")
    assert other.cached == 2 * PROMOTE_TOKENS
    assert len(s.cache.prefixes) == 1
    assert other.slot.shared == 2 * PROMOTE_TOKENS


def test_the_next_turn_goes_on_in_its_own_slot_without_a_copy() -> None:
    s = Simulated()
    turn = ints(range(60))
    slot = s.run(turn, "a").slot
    again = s.run(ints(turn, range(70, 90)), "a")
    assert again.slot is slot and again.cached == 60
    assert again.copy is None and again.rebase is None


def test_a_turn_that_rewrites_history_keeps_only_what_is_still_true() -> None:
    s = Simulated()
    s.run(ints(range(60)), "a")
    assert s.run(ints(range(30), [7, 7, 7]), "a").cached == 30


def test_nothing_is_shared_across_versions() -> None:
    s = Simulated()
    s.run(ints(range(60)), "a", version=0)
    assert s.run(ints(range(60)), "a", version=1).cached == 0


def test_the_least_recently_used_idle_slot_is_evicted_and_a_running_one_never() -> None:
    s = Simulated(slots=2)
    s.run(ints(range(10, 40)), "old")
    s.run(ints(range(50, 80)), "new")
    running = s.start(ints(range(90, 120)), "x")
    assert running is not None
    s.compute(running.slot, ints(range(90, 120)))
    assert s.run(ints(range(50, 80), [1]), "new").cached == 30
    assert s.start(ints(range(200, 230)), "y") is not None
    assert s.start(ints(range(300, 330)), "z") is None, "both slots run"


def test_an_unused_prefix_makes_room_for_a_new_one() -> None:
    s = Simulated(slots=2, prefix_capacity=250)
    for base in (1000, 2000):
        s.run(ints(range(base, base + 200)), "a")
        s.run(ints(range(base, base + 200)), "b")
    assert [int(p.tokens[0]) for p in s.cache.prefixes] == [2000]
    assert s.cache.used_tokens <= 2 * 512 + 250


def test_dropping_the_idle_frees_all_but_what_runs() -> None:
    s = Simulated()
    prompt = ints(range(200))
    s.run(prompt, "a")
    running = s.start(prompt, "b")
    assert running is not None
    s.cache.drop_idle()
    s.store.forget(s.cache)
    assert [p.users for p in s.cache.prefixes] == [1]
    s.compute(running.slot, prompt)
    s.cache.release(running.slot, keep=False)
    s.cache.drop_idle()
    assert s.cache.used_tokens == 0


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_whatever_happens_the_rows_read_are_those_computed_from_the_same_tokens(data: st.DataObject) -> None:
    s = Simulated(slots=3, max_len=400, prefix_capacity=350)
    version = 0
    running: dict[str, tuple[Slot, Ints]] = {}
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["start", "start", "finish", "abort", "publish"]))
        if action == "start":
            cut, common = data.draw(st.integers(1, 150)), data.draw(st.integers(0, 3))
            own = data.draw(st.lists(st.integers(0, 2), max_size=20))
            tokens = ints(np.full(150, common)[:cut], own, [3])
            session = data.draw(st.sampled_from("abcde"))
            if session not in running and (placement := s.start(tokens, session, version)):
                running[session] = (placement.slot, tokens)
        elif action == "publish" and not running:
            version += 1
            s.cache.drop_idle()
            s.store.forget(s.cache)
        elif running:
            session = data.draw(st.sampled_from(sorted(running)))
            slot, tokens = running.pop(session)
            if action == "finish":
                s.compute(slot, tokens, version)
            s.cache.release(slot, keep=True)
        for slot, tokens in running.values():
            s.check(slot, tokens, slot.filled, version)
        for prefix in s.cache.prefixes:
            assert prefix.users == sum(slot.prefix is prefix for slot in s.cache.slots)
        assert sum(len(p) for p in s.cache.prefixes) <= 350


@given(st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=8))
def test_distinct_tokens_are_the_nodes_of_the_tree_of_all_beginnings(sequences: list[list[int]]) -> None:
    beginnings = {tuple(sequence[:end]) for sequence in sequences for end in range(1, len(sequence) + 1)}
    assert distinct_tokens(ints(sequence) for sequence in sequences) == len(beginnings)
