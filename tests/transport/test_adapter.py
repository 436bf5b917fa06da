from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from muster.transport.adapter import merge, merge_one, narrow, widen

BF16 = "bfloat16"


def matrices(seed: int = 0, *, outputs: int = 40, inputs: int = 24, rank: int = 5) -> tuple[np.ndarray, ...]:
    """A base in bf16, A and B."""
    rng = np.random.default_rng(seed)
    base, a, b = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((outputs, inputs), (rank, inputs), (outputs, rank))
    )
    return narrow(base, BF16), a, b


def test_a_merge_is_the_base_plus_the_scaled_product():
    base, a, b = matrices()
    expected = widen(base, BF16).astype(np.float64) + 0.5 * b.astype(np.float64) @ a.astype(np.float64)
    exact = merge_one(widen(base, BF16), a, b, scale=0.5, dtype="float32")
    np.testing.assert_allclose(exact, expected, rtol=1e-5, atol=1e-5)
    served = widen(merge_one(base, a, b, scale=0.5, dtype=BF16), BF16)
    np.testing.assert_allclose(served, expected, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("block", [1, 100, 1 << 20])
def test_every_bit_is_that_of_one_number_summed_by_hand(block):
    """Whatever the block: the order of sums is the law that two machines agree by."""
    base, a, b = matrices(3)
    found = merge_one(base, a, b, scale=1.7, dtype=BF16, block=block)
    for o, i in [(0, 0), (7, 23), (39, 11)]:
        total = np.float32(0)
        for r in range(len(a)):
            total = np.float32(total + np.float32(b[o, r] * a[r, i]))
        total = np.float32(total * np.float32(1.7))
        total = np.float32(widen(base[o : o + 1, i], BF16)[0] + total)
        assert found[o, i] == narrow(np.array([total]), BF16)[0]


def test_the_precision_of_serving_alone_decides_where_it_is_rounded():
    base, a, b = matrices(1)
    wide = merge_one(widen(base, BF16), a, b, scale=2.0, dtype="float32")
    np.testing.assert_array_equal(merge_one(base, a, b, scale=2.0, dtype=BF16), narrow(wide, BF16))


def test_weights_without_an_adapter_are_handed_on_and_a_zero_adapter_changes_nothing():
    base, a, b = matrices()
    weights = {"w": base, "norm": base[0]}
    merged = merge(weights, {"w.lora_A": a, "w.lora_B": np.zeros_like(b)}, scale=2.0, dtype=BF16)
    assert list(merged) == ["w", "norm"] and merged["norm"] is weights["norm"]
    np.testing.assert_array_equal(merged["w"], base)
    assert merged["w"] is not base


@settings(deadline=None)
@given(arrays(np.float32, 8, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_bfloat16_is_the_nearest_and_of_two_the_even_one(values):
    bits = narrow(values, BF16)
    below = (values.view(np.uint32) >> 16).astype(np.uint16)  # towards zero
    rest = values.view(np.uint32) & 0xFFFF
    up = (rest > 0x8000) | ((rest == 0x8000) & (below % 2 == 1))
    np.testing.assert_array_equal(bits, below + up)


@settings(deadline=None)
@given(arrays(np.uint16, 8))
def test_widening_is_exact_and_what_is_no_number_stays_none(bits):
    wide = widen(bits, BF16)
    again = narrow(wide, BF16)
    number = ~np.isnan(wide)
    np.testing.assert_array_equal(again[number], bits[number])
    assert np.isnan(widen(again[~number], BF16)).all()
