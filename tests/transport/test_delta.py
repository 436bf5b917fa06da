from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.errors import PublicationError
from muster.transport import delta


def applied(old: list, streams: dict, changed: int) -> list:
    """Weights that a receiver makes of it."""
    itemsize = old[0].itemsize
    flat = np.concatenate([delta.bits(a) for a in old])
    positions, values = delta.unpack(streams, changed=changed, itemsize=itemsize)
    flat[positions] = values
    ends = np.cumsum([a.size for a in old])[:-1]
    return [part.view(a.dtype).reshape(a.shape) for part, a in zip(np.split(flat, ends), old, strict=True)]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=4),
    share=st.sampled_from([0.0, 0.0005, 0.003, 0.02, 0.5, 1.0]),
    dtype=st.sampled_from([np.uint16, np.float32]),
    seed=st.integers(0, 2**31),
)
def test_what_is_applied_to_the_old_has_the_bits_of_the_new(sizes, share, dtype, seed):
    rng = np.random.default_rng(seed)
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    old = [rng.integers(0, np.iinfo(bits).max, size, dtype=bits, endpoint=True).view(dtype) for size in sizes]
    new = [(a.view(bits) ^ (rng.random(a.size) < share)).astype(bits).view(dtype) for a in old]
    positions, values = delta.changes(old, new)
    assert len(positions) == sum(int((a.view(bits) != b.view(bits)).sum()) for a, b in zip(old, new, strict=True))
    result = applied(old, delta.pack(positions, values), len(positions))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(result, new, strict=True))


def test_a_nan_that_stays_the_same_nan_is_no_change_and_another_nan_is_one():
    old = [np.array([0x7FC00000, 0x7FC00000, 0x3F800000], np.uint32).view(np.float32)]
    new = [np.array([0x7FC00000, 0x7FC00001, 0x3F800000], np.uint32).view(np.float32)]
    positions, values = delta.changes(old, new)
    assert positions.tolist() == [1] and values.tolist() == [0x7FC00001]


def test_minus_zero_is_not_zero():
    positions, _ = delta.changes([np.array([0.0], np.float32)], [np.array([-0.0], np.float32)])
    assert positions.tolist() == [0]


@pytest.mark.parametrize("gap", [254, 255, 256, 70_000, 5_000_000_000])
def test_gaps_of_any_width_come_back(gap):
    positions = np.array([3, 3 + gap, 4 + gap, 4 + 2 * gap])
    values = np.array([1, 2, 3, 4], np.uint16)
    back, back_values = delta.unpack(delta.pack(positions, values), changed=4, itemsize=2)
    assert back.tolist() == positions.tolist() and back_values.tolist() == values.tolist()


def test_after_a_step_that_moves_two_percent_of_bf16_values_it_takes_less_than_three_percent():
    rng = np.random.default_rng(1)
    size = 200_000
    old = ((rng.standard_normal(size, dtype=np.float32) * 0.05).view(np.uint32) >> 16).astype(np.uint16)
    new = (old ^ (rng.random(size) < 0.02)).astype(np.uint16)
    streams = delta.pack(*delta.changes([old], [new]))
    assert sum(s.nbytes for s in streams.values()) < 0.03 * old.nbytes


@pytest.mark.parametrize("name", ["gaps", "wide", "values.0", "values.1"])
def test_a_stream_that_is_missing_broken_short_or_long_is_an_error(name):
    positions, values = np.arange(0, 90_000, 300), np.arange(300, dtype=np.uint16)
    whole = delta.pack(positions, values)
    other = delta.pack(positions[:-1], values[:-1])
    more = delta.pack(np.arange(0, 90_600, 300), np.arange(302, dtype=np.uint16))
    for broken in ({}, {name: whole[name][:-5]}, {name: other[name]}, {name: more[name]}, {name: whole[name] * 0}):
        streams = {k: v for k, v in whole.items() if k != name} | broken
        with pytest.raises(PublicationError, match=name):
            delta.unpack(streams, changed=300, itemsize=2)
