"""Merging of an adapter into the base it belongs to: the same bits on every machine.

Law: plain numpy, one rounding for every product and every sum, in the order of the rank. No matrix product: a BLAS
sums in an order of its own, fuses multiply and add, and so rounds differently from machine to machine. Trainer and
engine merge apart and agree by digest.

    base ─widen─► fp32 ──────────────────────────────┐
    B (O, R), A (R, I) ─► sum over r of B_r A_r ─► * scale ─► + ─narrow─► the weights that are served

Low-rank adaptation: W' = W + (alpha / rank) B A (Hu et al. 2021). Shapes: O outputs, I inputs, R rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

A, B = ".lora_A", ".lora_B"
"""Behind the name of the weight that a low-rank matrix changes."""

_BLOCK = 1 << 16
"""Elements handled at a time: what is summed stays in a core's cache, and an engine's thread is seldom disturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Adapter: low-rank matrices, and how to merge them. base: digest of the base's weights in the serving dtype."""

    base: str
    scale: float


def merge(base: Mapping[str, Array], low_rank: Mapping[str, Array], *, scale: float, dtype: str) -> dict[str, Array]:
    """The weights that `low_rank` makes of `base`; those that it does not name are handed on as they are.

    base: in `dtype`, "float32" or "bfloat16" (its bits, in uint16); low_rank: `NAME.lora_A` (R, I) and `NAME.lora_B`
    (O, R) in float32. Takes about 0.7 ns of one core for each element and rank, and the memory of what is returned.

    Example: `merge(base, {"w.lora_A": a_RI, "w.lora_B": b_OR}, scale=2.0, dtype="bfloat16")["w"]`
    """
    return {
        name: merge_one(weight, low_rank[name + A], low_rank[name + B], scale=scale, dtype=dtype)
        if name + A in low_rank
        else weight
        for name, weight in base.items()
    }


def merge_one(base_OI: Array, a_RI: Array, b_OR: Array, *, scale: float, dtype: str, block: int = _BLOCK) -> Array:
    """One weight: base + scale * B A, in the base's own `dtype`. block: elements at a time."""
    assert a_RI.dtype == b_OR.dtype == np.float32, f"low-rank matrices are float32, not {a_RI.dtype}, {b_OR.dtype}"
    assert base_OI.shape == (b_OR.shape[0], a_RI.shape[1]), f"{b_OR.shape} x {a_RI.shape} is not {base_OI.shape}"
    merged_OI = np.empty(base_OI.shape, base_OI.dtype)
    step = max(1, block // base_OI.shape[1])
    for start in range(0, len(base_OI), step):
        rows = slice(start, start + step)
        change = _product(a_RI, b_OR[rows])
        change *= np.float32(scale)
        change += widen(base_OI[rows], dtype)
        merged_OI[rows] = narrow(change, dtype, block)
    return merged_OI


def _product(a_RI: Array, b_OR: Array) -> Array:
    """B A, summed over the rank from the first to the last."""
    sum_OI = np.zeros((b_OR.shape[0], a_RI.shape[1]), dtype=np.float32)
    term_OI = np.empty_like(sum_OI)
    for b_O, a_I in zip(b_OR.T, a_RI, strict=True):
        np.multiply(b_O[:, None], a_I, out=term_OI)
        sum_OI += term_OI
    return sum_OI


def widen(values: Array, dtype: str) -> Array:
    """As float32, exactly. bfloat16 is the upper half of a float32."""
    if dtype == "float32":
        return values
    return np.left_shift(values, 16, dtype=np.uint32).view(np.float32)


def narrow(values: Array, dtype: str, block: int = _BLOCK) -> Array:
    """float32 to `dtype`: to the nearest, ties to the even one; what is not a number stays so."""
    if dtype == "float32":
        return values
    bits = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    narrowed = np.empty(bits.shape, np.uint16)
    for start in range(0, len(bits), block):
        some = slice(start, start + block)
        _round_into(narrowed[some], bits[some])
    return narrowed.reshape(values.shape)


def _round_into(target: Array, bits: Array) -> None:
    """The upper half of each float32, rounded: half a step is added, less a bit where the half is already even."""
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    target[:] = rounded
    no_number = (bits & 0x7FFFFFFF) > 0x7F800000
    if no_number.any():  # the sum may have carried it to an infinity, or to zero
        target[no_number] = 0x7FC0
