"""Publication through shared memory: one safetensors file that engines on the same machine map.

Law: a reader finds a whole file or none. Every file names its run and the process that owns it, so that what a
killed run left behind is found and removed. No torch: the trainer hands over plain arrays.

    trainer ─ arrays ─► MemoryExporter.export ─► /dev/shm/muster-RUN-PID-vN.safetensors ─► Publication ─► engines
                                 └─ not enough room ─► the run's own directory
    next exports ─► only the last `keep` files stay     end of the run ─► clear()     start of any run ─► files.reap()
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from muster.errors import PublicationError
from muster.publish.payload import Payload, low_rank, whole
from muster.transport.adapter import Adapter
from muster.transport.files import SHARED_MEMORY, file_name, file_prefix, has_room, whole_file
from muster.transport.tensors import ELEMENTS, Array
from muster.types import Publication, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryExporter:
    """Writes published weights where engines on this machine can map them.

    Example: `MemoryExporter(run_label="demo", fallback=run_directory / "weights")`
    """

    run_label: str
    fallback: Path  # used when shared memory has no room
    directory: Path = SHARED_MEMORY
    keep: int = 2  # files of this run; an engine copies what it stages, so older ones have no reader
    max_bytes_per_s: float | None = None
    owner_pid: int = field(default_factory=os.getpid)  # of the run, not of the trainer's process

    def export(
        self,
        arrays: Mapping[str, Array],
        *,
        number: int,
        digest: str,
        dtype: str,
        adapter: Adapter | None = None,
    ) -> Publication:
        """Write version `number`. dtype: "bfloat16" (arrays hold its bits, uint16) or "float32".

        With `adapter`, arrays are its matrices. Raises `PublicationError` when neither place takes the file.
        """
        version = Version(number=number, digest=digest)
        payload = low_rank(arrays, version, adapter) if adapter else whole(_checked(arrays, dtype), version)
        path = self._write(payload)
        self._retire_before(path)
        return Publication(
            version=version,
            transport="memory",
            location=str(path),
            size_bytes=payload.size_bytes,
            dtype=dtype,
            form=payload.form,
            max_bytes_per_s=self.max_bytes_per_s,
        )

    def clear(self) -> None:
        """Remove every file of this run. Engines that have mapped one keep its pages."""
        for path in self._files():
            path.unlink(missing_ok=True)

    def _write(self, payload: Payload) -> Path:
        place = self.directory if has_room(self.directory, payload.size_bytes) else self.fallback
        path = place / file_name(self.run_label, self.owner_pid, payload.version.number)
        try:
            with whole_file(path) as file:
                payload.write_to(file)
        except OSError as error:
            evidence = {"size_bytes": payload.size_bytes}
            raise PublicationError(f"cannot write {path}: {error}; free space there", evidence) from error
        return path

    def _retire_before(self, newest: Path) -> None:
        """By age, not by number: a resumed run counts from an earlier version on."""
        older = sorted((p for p in self._files() if p != newest), key=lambda p: p.stat().st_mtime_ns)
        for path in older[: max(0, len(older) + 1 - self.keep)]:
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        pattern = f"{file_prefix(self.run_label, self.owner_pid)}*.safetensors*"
        return [path for place in (self.directory, self.fallback) for path in place.glob(pattern)]


def _checked(arrays: Mapping[str, Array], dtype: str) -> Mapping[str, Array]:
    for name, array in arrays.items():
        assert array.dtype == ELEMENTS[dtype], f"{name}: {array.dtype} is not {dtype}"
    return arrays
