"""Publication through shared memory: one safetensors file that engines on the same machine map.

Law: a reader finds a whole file or none. Every file names its run and the process that owns it, so that what a
killed run left behind is found and removed. No torch: the trainer hands over plain arrays.

    trainer ─ arrays ─► MemoryExporter.export ─► /dev/shm/muster-RUN-PID-vN.safetensors ─► Publication ─► engines
                                 └─ not enough room ─► the run's own directory
    next exports ─► only the last `keep` files stay     end of the run ─► clear()     start of any run ─► reap()
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.errors import PublicationError
from muster.types import Publication, Version

SHARED_MEMORY = Path("/dev/shm")
_SPARE_BYTES = 64 * 1024 * 1024
"""Room left to others in shared memory; a full /dev/shm breaks processes that have nothing to do with us."""

_ELEMENTS = {"bfloat16": ("BF16", np.dtype(np.uint16)), "float32": ("F32", np.dtype(np.float32))}
_NAME = re.compile(r"muster-(?P<run>.+)-(?P<pid>\d+)-v\d+\.safetensors(\.part)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryExporter:
    """Writes published weights where engines on this machine can map them.

    Example: `MemoryExporter(run_label="demo", fallback=run_directory / "weights")`
    """

    run_label: str
    fallback: Path  # used when shared memory has no room
    directory: Path = SHARED_MEMORY
    keep: int = 2  # files of this run; an engine copies what it stages, so older ones have no reader
    owner_pid: int = field(default_factory=os.getpid)  # of the run, not of the trainer's process

    def export(self, arrays: Mapping[str, npt.NDArray[Any]], *, number: int, digest: str, dtype: str) -> Publication:
        """Write version `number`. dtype: "bfloat16" (arrays hold its bits, uint16) or "float32".

        Raises `PublicationError` when neither place takes the file.
        """
        header = _header(arrays, dtype=dtype, number=number, digest=digest)
        size_bytes = len(header) + sum(array.nbytes for array in arrays.values())
        place = self.directory if self._has_room(size_bytes) else self.fallback
        path = place / self._name(number)
        try:
            place.mkdir(parents=True, exist_ok=True)
            _write(path, header, arrays)
        except OSError as error:
            raise PublicationError(f"cannot write {path}: {error}", {"size_bytes": size_bytes}) from error
        self._retire_before(path)
        return Publication(
            version=Version(number=number, digest=digest),
            transport="memory",
            location=str(path),
            size_bytes=size_bytes,
            dtype=dtype,
        )

    def clear(self) -> None:
        """Remove every file of this run. Engines that have mapped one keep its pages."""
        for path in self._files():
            path.unlink(missing_ok=True)

    def _retire_before(self, newest: Path) -> None:
        """By age, not by number: a resumed run counts from an earlier version on."""
        older = sorted((p for p in self._files() if p != newest), key=lambda p: p.stat().st_mtime_ns)
        for path in older[: max(0, len(older) + 1 - self.keep)]:
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        pattern = f"{self._prefix}-v*.safetensors*"
        return [path for place in (self.directory, self.fallback) for path in place.glob(pattern)]

    def _name(self, number: int) -> str:
        return f"{self._prefix}-v{number}.safetensors"

    @property
    def _prefix(self) -> str:
        label = re.sub(r"[^A-Za-z0-9_.]", "_", self.run_label)
        return f"muster-{label}-{self.owner_pid}"

    def _has_room(self, size_bytes: int) -> bool:
        if not self.directory.is_dir():
            return False
        return shutil.disk_usage(self.directory).free >= size_bytes + _SPARE_BYTES


def retire(publication: Publication) -> None:
    """Remove a publication's file. Engines that have mapped it keep their pages. Idempotent."""
    assert publication.transport == "memory", publication.transport
    Path(publication.location).unlink(missing_ok=True)


def reap(directory: Path = SHARED_MEMORY) -> list[Path]:
    """Remove the files of runs whose process is gone; returns them."""
    orphans = [
        path
        for path in sorted(directory.glob("muster-*-v*.safetensors*"))
        if (found := _NAME.fullmatch(path.name)) and not _alive(int(found["pid"]))
    ]
    for path in orphans:
        path.unlink(missing_ok=True)
    return orphans


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _header(arrays: Mapping[str, npt.NDArray[Any]], *, dtype: str, number: int, digest: str) -> bytes:
    """Length, then JSON, padded to 8 bytes: the safetensors format, version 0.3."""
    name_of_type, element = _ELEMENTS[dtype]
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", "version": str(number), "digest": digest}}
    offset = 0
    for name, array in arrays.items():
        assert array.dtype == element, f"{name}: {array.dtype} is not {dtype}"
        entries[name] = {
            "dtype": name_of_type,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write(path: Path, header: bytes, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(header)
            for array in arrays.values():
                file.write(np.ascontiguousarray(array).data)
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
