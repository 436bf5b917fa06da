"""One published file on this machine: what it says of itself, whether it is true, and what deltas make of it.

Law: a header is believed only as far as a mistake in it becomes an error or a digest that is wrong; nothing here trusts
a number to be small or a name to be there.

    base, delta, delta, ... ─► copy of the base ─ each delta's values at its positions ─► whole file
    positions count over all values of the base, in the order of its file: sorted by name

What is written is as long as the base, and a delta is at most half of that: `patched_into` takes the memory of one.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from muster.errors import PublicationError
from muster.transport import delta
from muster.transport.files import whole_file
from muster.transport.tensors import (
    ELEMENTS,
    Array,
    Header,
    describe,
    digest,
    encode_header,
    map_arrays,
    read_header,
)
from muster.types import Version

_MOST_DIGITS = 18  # of a count in a header: what an int64 holds


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile:
    """A file of ours. source: what messages call it, for its path is a copy. fetched_bytes: what it took to get it."""

    path: Path
    header: Header
    source: str
    fetched_bytes: int = 0

    @property
    def form(self) -> str:
        return self.header.metadata.get("form", "whole")

    @property
    def version(self) -> Version | None:
        return self.header.version

    @property
    def whole(self) -> bool:
        """Whether it is there and as long as it was."""
        return self.path.is_file() and self.path.stat().st_size == self.header.size_bytes

    def proves(self, version: Version, dtype: str) -> bool:
        """Whether its weights are of this dtype and have the digest of `version`, which is what it says it is."""
        if self.version != version or not self.whole:
            return False
        arrays = self.arrays()
        return all(a.dtype == ELEMENTS[dtype] for a in arrays.values()) and digest(arrays, dtype) == version.digest

    def arrays(self) -> dict[str, Array]:
        return map_arrays(self.path, self.header)

    def said(self, key: str) -> str:
        """From its header. Raises `PublicationError`, as the others do."""
        if key not in self.header.metadata:
            raise PublicationError(f"{self.source}: corrupt header: no {key!r}")
        return self.header.metadata[key]

    def count(self, key: str) -> int:
        text = self.said(key)
        if not text.isdecimal() or len(text) > _MOST_DIGITS:
            raise PublicationError(f"{self.source}: corrupt header: {key} is {text!r}")
        return int(text)

    def fraction(self, key: str) -> float:
        text = self.said(key)
        try:
            return float(text)
        except ValueError as error:
            raise PublicationError(f"{self.source}: corrupt header: {key} is {text!r}") from error


def opened(path: Path, source: str, fetched_bytes: int = 0) -> LocalFile:
    """Raises `PublicationError` when it is no such file or was cut short."""
    return LocalFile(path=path, header=read_header(path, name=source), source=source, fetched_bytes=fetched_bytes)


def patched_into(path: Path, base: LocalFile, deltas: Sequence[LocalFile], version: Version) -> None:
    """Write a copy of `base` with `deltas` applied, oldest first. Raises `PublicationError` when one does not fit."""
    arrays = base.arrays()
    header = encode_header(arrays, describe(version))
    sizes = {array.itemsize for array in arrays.values()}
    if len(sizes) != 1:
        raise PublicationError(f"{base.source}: corrupt header: values of {sorted(sizes)} bytes")
    (itemsize,) = sizes
    with whole_file(path) as file:
        file.write(header)
        with base.path.open("rb") as source:
            source.seek(base.header.data_at)
            shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        flat = np.memmap(file, dtype=f"u{itemsize}", mode="r+", offset=len(header))
        for link in deltas:
            changed = link.count("changed")
            positions, values = delta.unpack(link.arrays(), changed=changed, itemsize=itemsize)
            if positions.size and not 0 <= positions.min() <= positions.max() < flat.size:
                raise PublicationError(f"{link.source}: corrupt delta: it changes what is not there")
            flat[positions] = values
        del flat
