"""Payload of a publication's file: all weights, what changed of them, or an adapter.

Law: a file describes itself. Its header says form, version and digest, and what it builds on, so that a receiver needs
its address alone.

    arrays ─► whole ─┐
    changes ─► delta ┼─► header + arrays ─► memory, direct, checkpoint
    A, B ─► adapter ─┘
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, Literal

import numpy as np

from muster.transport.adapter import Adapter
from muster.transport.delta import pack
from muster.transport.tensors import Array, describe, encode_header
from muster.types import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A file before it is written. base: the version of a delta's base."""

    version: Version
    form: Literal["whole", "delta", "adapter"]
    header: bytes
    arrays: Mapping[str, Array]
    base: Version | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.header) + sum(array.nbytes for array in self.arrays.values())

    def write_to(self, file: BinaryIO) -> None:
        file.write(self.header)
        for array in self.arrays.values():
            file.write(np.ascontiguousarray(array).data)


def whole(arrays: Mapping[str, Array], version: Version) -> Payload:
    return Payload(version=version, form="whole", header=encode_header(arrays, describe(version)), arrays=arrays)


def low_rank(arrays: Mapping[str, Array], version: Version, adapter: Adapter) -> Payload:
    """The matrices of an adapter. `version` has the digest of the merged weights."""
    said = describe(version, "adapter", base_digest=adapter.base, scale=repr(adapter.scale))
    return Payload(version=version, form="adapter", header=encode_header(arrays, said), arrays=arrays)


def changed(
    positions: Array, values: Array, version: Version, *, base: Version, base_file: str, whole_bytes: int
) -> Payload:
    """Delta: what changed since `base`, which lies in the same place as `base_file`. whole_bytes: of all weights."""
    streams = pack(positions, values)
    said = describe(
        version,
        "delta",
        changed=str(len(positions)),
        base_version=str(base.number),
        base_digest=base.digest,
        base_file=base_file,
        whole_bytes=str(whole_bytes),
    )
    return Payload(version=version, form="delta", header=encode_header(streams, said), arrays=streams, base=base)
