"""The file format of everything that travels: safetensors, read and written with numpy alone.

    8 bytes: length of the header │ header: JSON, padded to 8 │ data: one array after the other

Law: the header says what the file is, which version and how long: nothing is taken from its name. bfloat16 is handled
as its bits, uint16, for numpy has no such type. Format: safetensors 0.3 (Hugging Face).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.errors import PublicationError
from muster.types import Version

Array = npt.NDArray[Any]

ELEMENTS: dict[str, np.dtype[Any]] = {"bfloat16": np.dtype(np.uint16), "float32": np.dtype(np.float32)}
"""What weights are served in, and what numpy holds them in."""

_CODES = {"uint16": "BF16", "float32": "F32", "uint8": "U8", "uint32": "U32"}
_DTYPES = {"BF16": np.uint16, "F32": np.float32, "U8": np.uint8, "U32": np.uint32, "F16": np.float16}
_LONGEST_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One array of a file. `start` and `end` count from the beginning of the data, in bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Header of a file: its entries and metadata. The data begin at `data_at`; the file is `size_bytes` long."""

    metadata: Mapping[str, str]
    entries: Mapping[str, TensorEntry]
    data_at: int
    size_bytes: int

    @property
    def version(self) -> Version | None:
        """None: it was not written for a publication."""
        if not {"version", "digest"} <= self.metadata.keys() or not self.metadata["version"].isdecimal():
            return None
        return Version(number=int(self.metadata["version"]), digest=self.metadata["digest"])


def describe(version: Version, form: str = "whole", **more: str) -> dict[str, str]:
    """The metadata of a published file."""
    return {"format": "pt", "version": str(version.number), "digest": version.digest, "form": form, **more}


def encode_header(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """Encode what stands before the data of `arrays`."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, array in arrays.items():
        end = offset + array.nbytes
        code = _CODES[array.dtype.name]
        entries[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_header(path: Path, *, name: str = "") -> Header:
    """Raises `PublicationError` when it is no such file or not as long as it says, `OSError`.

    name: what messages call it, where `path` is a copy; empty: its path.
    """
    name = name or str(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(size - 8, _LONGEST_HEADER_BYTES):
            raise PublicationError(f"{name}: cut short or corrupt: {size} bytes do not hold a header")
        text = file.read(length)
    try:
        header = _parse(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # whatever bytes there are
        raise PublicationError(f"{name}: corrupt header: {error}") from error
    if header.size_bytes != size:
        raise PublicationError(f"{name}: cut short or corrupt: {size} bytes, its header says {header.size_bytes}")
    return header


def _parse(text: bytes) -> Header:
    content: dict[str, Any] = json.loads(text)
    metadata = content.pop("__metadata__", {})
    entries = {name: _entry(**fields) for name, fields in content.items()}
    end = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.end)):
        if entry.start != end:
            raise ValueError(f"a hole or an overlap at byte {end} of the data")
        end = entry.end
    data_at = 8 + len(text)
    said = {str(key): str(value) for key, value in metadata.items()}
    return Header(metadata=said, entries=entries, data_at=data_at, size_bytes=data_at + end)


def _entry(*, dtype: str, shape: list[int], data_offsets: list[int]) -> TensorEntry:
    start, end = data_offsets
    entry = TensorEntry(dtype=np.dtype(_DTYPES[dtype]), shape=tuple(shape), start=start, end=end)
    elements = 1
    for n in shape:
        if n < 0:
            raise ValueError(f"shape {shape}")
        elements *= n
    if start < 0 or end - start != elements * entry.dtype.itemsize:
        raise ValueError(f"shape {shape} does not fill bytes {start} to {end}")
    return entry


def map_arrays(path: Path, header: Header) -> dict[str, Array]:
    """The arrays of a file in the order of its header, mapped, read only."""
    whole: Array = np.memmap(path, dtype=np.uint8, mode="r") if header.size_bytes else np.empty(0, np.uint8)
    return {
        name: whole[header.data_at + e.start : header.data_at + e.end].view(e.dtype).reshape(e.shape)
        for name, e in header.entries.items()
    }


def digest(arrays: Mapping[str, Array], dtype: str) -> str:
    """Hex sha256 over the sorted arrays: name, dtype, shape, bytes; the one that trainer and engine compute.

    dtype: "bfloat16" or "float32". About 0.2 s per GB on a core with instructions for it, else 2 s.
    """
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        assert array.dtype == ELEMENTS[dtype], f"{name}: {array.dtype} is not {dtype}"
        total.update(f"{name}|torch.{dtype}|{tuple(array.shape)}|".encode())
        total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return total.hexdigest()
