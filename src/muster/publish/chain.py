"""Versions as files in a place: which form each one gets, and which files must stay.

Law: of what is fetchable, every chain is complete back to its anchor. Nothing is counted as published before its
file is: a failed export leaves the chain as it was, and the next one builds on what is there. Weights lie sorted by
name: in whole files, and where the positions of a delta count. So an engine's own copy is a base like any other.

    export ─┬─ first, `anchor_every`-th, other layout, too much changed, not newer than the last ─► whole: an anchor
            └─ else ─► delta to the version before
         ─► place.write ─► remove what no chain of the last `keep` versions needs ─► Publication

The same version exported again is an anchor: who asks again could not use the chain, or has lost it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.errors import PublicationError
from muster.publish.payload import Payload, changed, low_rank, whole
from muster.publish.places import Place
from muster.transport.adapter import Adapter
from muster.transport.delta import bits, changes
from muster.transport.files import PREFIX, file_name, file_prefix, is_orphan
from muster.transport.tensors import ELEMENTS, Array
from muster.types import Publication, Version

_LARGEST_DELTA = 0.5
"""As a share of the whole: beyond it a delta costs its decoding and saves little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    name: str
    version: Version
    form: Literal["whole", "delta", "adapter"]


class ChainExporter:
    """Writes versions to a place. With form "delta" it holds a copy of the last one's weights.

    Example: `ChainExporter(place, transport="checkpoint", label="demo", form="delta", anchor_every=16, keep=2)`

    Every file names its run and the process that owns it: what a killed run left is found and removed.
    """

    def __init__(
        self,
        place: Place,
        *,
        transport: Literal["memory", "direct", "checkpoint"],
        label: str,
        form: Literal["whole", "delta"] = "whole",
        anchor_every: int = 16,
        keep: int = 2,
        max_bytes_per_s: float | None = None,
        owner_pid: int | None = None,
    ) -> None:
        """owner_pid: of the run, which this process may be a child of; None: of this process."""
        self._place, self._label = place, label
        self._transport: Literal["memory", "direct", "checkpoint"] = transport
        self._form, self._anchor_every, self._keep = form, anchor_every, keep
        self._max_bytes_per_s = max_bytes_per_s
        self._owner_pid = os.getpid() if owner_pid is None else owner_pid
        self._written: list[_Written] = []  # oldest first
        self._last: dict[str, Array] = {}  # the weights of the last one, where the next is to be a delta

    def export(
        self,
        arrays: Mapping[str, Array],
        *,
        number: int,
        digest: str,
        dtype: str,
        adapter: Adapter | None = None,
    ) -> Publication:
        """As `trainer.port.Exporter`. Raises `PublicationError`; nothing half-written stays."""
        version = Version(number=number, digest=digest)
        arrays = dict(sorted(arrays.items()))
        if adapter is not None:
            return self._publish(low_rank(arrays, version, adapter), dtype)
        for name, array in arrays.items():
            assert array.dtype == ELEMENTS[dtype], f"{name}: {array.dtype} is not {dtype}"
        if self._form == "whole":
            return self._publish(whole(arrays, version), dtype)
        return self._export_chained(arrays, version, dtype)

    def clear(self) -> None:
        """Remove every file of this run; from any process. Storage that does not answer fails no run: see `reap`."""
        with contextlib.suppress(OSError):
            for name in self._place.names(file_prefix(self._label, self._owner_pid)):
                self._remove(name)

    def reap(self) -> list[str]:
        """Remove what dead runs of this machine left in a place that others use too; returns the names.

        Raises `OSError` when the place does not answer.
        """
        names = [name for name in self._place.names(PREFIX) if is_orphan(name, shared=True)]
        return [name for name in names if self._remove(name)]

    def _export_chained(self, arrays: Mapping[str, Array], version: Version, dtype: str) -> Publication:
        found = self._changes(arrays, version)
        if found is None:
            publication = self._publish(whole(arrays, version), dtype)
            self._last = {name: array.copy() for name, array in arrays.items()}
            return publication
        positions, values = found
        base = self._written[-1]
        whole_bytes = sum(array.nbytes for array in arrays.values())
        payload = changed(positions, values, version, base=base.version, base_file=base.name, whole_bytes=whole_bytes)
        publication = self._publish(payload, dtype)
        _overwrite(self._last, arrays)
        return publication

    def _changes(self, arrays: Mapping[str, Array], version: Version) -> tuple[Array, Array] | None:
        """Since the last version; None: this one is to be whole."""
        if not self._written or version.number <= self._written[-1].version.number or self._anchor_is_due():
            return None
        if [(n, a.shape, a.dtype) for n, a in arrays.items()] != [(n, a.shape, a.dtype) for n, a in self._last.items()]:
            return None
        whole_bytes = sum(array.nbytes for array in arrays.values())
        change_bytes = 1 + max(array.itemsize for array in arrays.values())  # a gap and a value
        most = int(_LARGEST_DELTA * whole_bytes / change_bytes)
        return changes(list(self._last.values()), list(arrays.values()), most=most)

    def _anchor_is_due(self) -> bool:
        recent = self._written[-(self._anchor_every - 1) :] if self._anchor_every > 1 else []
        return all(written.form == "delta" for written in recent) and len(recent) == self._anchor_every - 1

    def _publish(self, payload: Payload, dtype: str) -> Publication:
        name = file_name(self._label, self._owner_pid, payload.version.number)
        try:
            location = self._place.write(name, payload)
        except OSError as error:
            if any(written.name == name for written in self._written):
                self._written.clear()  # it may be gone, and no chain may need it: begin a new one
            evidence = {"size_bytes": payload.size_bytes}
            raise PublicationError(
                f"version {payload.version.number}: cannot write {name}: {error}; free space there, or "
                "mend the rights, credentials or address of publish.transport",
                evidence,
            ) from error
        self._written = [w for w in self._written if w.name != name]
        self._written.append(_Written(name=name, version=payload.version, form=payload.form))
        self._retire()
        return Publication(
            version=payload.version,
            transport=self._transport,
            location=location,
            size_bytes=payload.size_bytes,
            dtype=dtype,
            form=payload.form,
            base=payload.base,
            max_bytes_per_s=self._max_bytes_per_s,
        )

    def _retire(self) -> None:
        first = max(0, len(self._written) - self._keep)
        while first > 0 and self._written[first].form == "delta":
            first -= 1
        for old in self._written[:first]:
            self._remove(old.name)
        del self._written[:first]

    def _remove(self, name: str) -> bool:
        """A storage that will not is no reason to fail what was published; `clear` and `reap` come back to it."""
        try:
            self._place.remove(name)
        except OSError:
            return False
        return True


def _overwrite(last: Mapping[str, Array], arrays: Mapping[str, Array]) -> None:
    for name, array in arrays.items():
        np.copyto(bits(last[name]), bits(array))
