"""The prefix cache: what is shared, what is locked, what goes first."""

from __future__ import annotations

import numpy as np
import pytest

from muster.lab.emulated.radix import Node, RadixCache
from muster.types import Ints

Cache = RadixCache[str]


def tokens(*runs: tuple[int, int]) -> Ints:
    """Runs of (first id, length)."""
    return np.concatenate([np.arange(first, first + length, dtype=np.int32) for first, length in runs])


def cache(block: int = 4) -> Cache:
    made: Cache = RadixCache(block)
    made.serve(0)
    return made


def put(radix: Cache, sequence: Ints, *, ready: bool = True) -> Node[str]:
    """Claim the whole blocks of `sequence`, and compute them."""
    match = radix.match(sequence, 0)
    node = radix.claim(match, sequence, radix.whole(len(sequence) - 1), "owner")
    if ready:
        radix.ready(node, len(node.run))
    return node


def test_only_whole_blocks_short_of_the_last_token_are_cached() -> None:
    radix = cache()
    put(radix, tokens((0, 12)))
    assert radix.used == 8
    assert radix.match(tokens((0, 12)), 0).cached == 8
    assert radix.match(tokens((0, 7)), 0).cached == 4
    assert radix.match(tokens((1, 12)), 0).cached == 0


def test_a_shared_beginning_is_held_once_and_locked_while_anyone_uses_it() -> None:
    radix = cache()
    first = put(radix, tokens((0, 9), (100, 8)))
    second = put(radix, tokens((0, 9), (200, 8)))
    assert radix.used == 8 + 8 + 8
    assert radix.idle == 0
    radix.unlock(first)
    assert radix.idle == 8
    radix.unlock(second)
    assert radix.idle == radix.used == 24


def test_versions_share_nothing_and_an_old_one_goes_when_its_last_user_does() -> None:
    radix = cache()
    running, idle = put(radix, tokens((0, 9))), put(radix, tokens((50, 9)))
    radix.unlock(idle)
    radix.serve(1)
    assert radix.match(tokens((0, 9)), 1).cached == 0
    assert radix.used == 8
    radix.unlock(running)
    assert (radix.used, radix.idle) == (0, 0)


def test_the_least_recently_used_end_is_evicted_first() -> None:
    radix = cache()
    for first in (0, 50, 100):
        radix.unlock(put(radix, tokens((first, 13))))
    radix.unlock(put(radix, tokens((0, 13))))
    radix.evict(16)
    assert [radix.match(tokens((first, 13)), 0).cached for first in (0, 50, 100)] == [12, 0, 8]


def test_what_is_locked_is_not_evicted() -> None:
    radix = cache()
    put(radix, tokens((0, 9)))
    with pytest.raises(AssertionError):
        radix.evict(4)


def test_a_part_that_is_being_computed_names_who_computes_it() -> None:
    radix = cache()
    node = put(radix, tokens((0, 17)), ready=False)
    assert radix.match(tokens((0, 17)), 0).owner == "owner"
    radix.ready(node, 10)  # two whole blocks
    match = radix.match(tokens((0, 17)), 0)
    assert (match.cached, match.owner) == (8, "owner")
    other = radix.match(tokens((0, 8), (300, 9)), 0)
    assert (other.cached, other.owner) == (8, None)


def test_giving_up_forgets_what_was_not_computed() -> None:
    radix = cache()
    node = put(radix, tokens((0, 17)), ready=False)
    radix.ready(node, 8)
    radix.unlock(radix.shrink(node))
    assert (radix.used, radix.idle) == (8, 8)
    node = put(radix, tokens((50, 17)), ready=False)
    radix.unlock(radix.shrink(node))
    assert (radix.used, radix.idle) == (8, 8)


def test_a_reply_continues_its_prompt_and_a_sibling_with_the_same_reply_adds_nothing() -> None:
    radix = cache()
    first = put(radix, tokens((0, 9)))
    second = put(radix, tokens((0, 9)))
    reply = tokens((8, 1), (400, 7))
    radix.unlock(radix.grow(first, reply))
    radix.unlock(radix.grow(second, reply))
    assert radix.used == radix.idle == 16
    assert radix.match(tokens((0, 9), (400, 9)), 0).cached == 16


def test_outdated_entries_of_the_eviction_queue_are_swept() -> None:
    radix = cache()
    for _ in range(5000):
        radix.unlock(put(radix, tokens((0, 9))))
    assert len(radix._leaves) <= 1100
