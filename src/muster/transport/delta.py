"""Delta of one version to the next: changed positions and their new values, compressed.

Law: `apply(old, encode(old, new))` has the bits of `new`, whatever they mean as numbers. Values travel, not
differences: applied twice they give the same, and nothing adds up along a chain.

    old, new (the same layout) ─► positions p_0 < p_1 < ... of elements whose bits differ, over all arrays in order
        gaps    p_0, p_1 - p_0 - 1, ...   one byte each; 255 stands for the next of `wide`
        wide    those of 255 and more     8 bytes each
        values  the new bits, one plane for each of their bytes: exponents repeat and compress, fractions do not

An optimiser step at 1e-5 moves a weight by less than half of its last bf16 digit nearly always: 1 to 3 % of values
change. At a share q a gap carries about log2(e / q) bits, 7 to 8 here, which a byte fits well (the entropy of a
geometric distribution); with values a change takes about 2.4 bytes, where the weights take 2 each.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from muster.errors import PublicationError
from muster.transport.tensors import Array

_WIDE = 255
_LEVEL = 1  # of zlib: what can be gained here the Huffman code gains, and the step waits for it


def changes(old: Sequence[Array], new: Sequence[Array], *, most: int | None = None) -> tuple[Array, Array] | None:
    """Positions (int64) over all arrays in order, and the bits that are new there.

    None: more than `most` values have changed. Positions take more memory than values, and are counted first.
    """
    positions: list[Array] = [np.empty(0, np.int64)]
    values: list[Array] = []
    offset = found = 0
    for before, after in zip(old, new, strict=True):
        was, now = bits(before), bits(after)
        differs = was != now
        found += int(np.count_nonzero(differs))
        if most is not None and found > most:
            return None
        moved = np.flatnonzero(differs)
        positions.append(moved + offset)
        values.append(now[moved])
        offset += now.size
    return np.concatenate(positions), np.concatenate(values) if values else np.empty(0, np.uint16)


def bits(array: Array) -> Array:
    """Its elements, flat, as unsigned integers of their size: what compares NaN with NaN."""
    return array.reshape(-1).view(f"u{array.itemsize}")


def pack(positions: Array, values: Array) -> dict[str, Array]:
    """The streams of a delta. `positions` ascend.

    Example: `pack(np.array([3, 400]), np.array([7, 8], np.uint16))`
    """
    gaps = np.diff(positions, prepend=-1) - 1
    is_wide = gaps >= _WIDE
    planes = values.view(np.uint8).reshape(values.size, values.itemsize).T
    return {
        "gaps": _compressed(np.where(is_wide, _WIDE, gaps).astype(np.uint8)),
        "wide": _compressed(gaps[is_wide].astype("<u8")),
        **{f"values.{index}": _compressed(plane) for index, plane in enumerate(planes)},
    }


def unpack(streams: Mapping[str, Array], *, changed: int, itemsize: int) -> tuple[Array, Array]:
    """The positions and values of `pack`. Raises `PublicationError` when the streams do not hold `changed` of them."""
    gaps = _expanded(streams, "gaps", changed).astype(np.int64)
    is_wide = gaps == _WIDE
    wide = _expanded(streams, "wide", 8 * int(is_wide.sum())).view("<u8")
    gaps[is_wide] = wide
    values = np.empty((changed, itemsize), np.uint8)
    for index in range(itemsize):
        values[:, index] = _expanded(streams, f"values.{index}", changed)
    return np.cumsum(gaps + 1) - 1, values.reshape(-1).view(f"u{itemsize}")


def _compressed(values: Array) -> Array:
    return np.frombuffer(zlib.compress(np.ascontiguousarray(values).data, _LEVEL), np.uint8)


def _expanded(streams: Mapping[str, Array], name: str, size_bytes: int) -> Array:
    if name not in streams:
        raise PublicationError(f"corrupt delta: it has no {name!r}")
    expander = zlib.decompressobj()
    try:
        content = expander.decompress(np.ascontiguousarray(streams[name]).data, size_bytes + 1)  # never beyond
    except zlib.error as error:
        raise PublicationError(f"corrupt delta: {name!r}: {error}") from error
    if len(content) != size_bytes or not expander.eof:
        raise PublicationError(f"corrupt delta: {name!r} does not hold {size_bytes} bytes")
    return np.frombuffer(content, np.uint8)
