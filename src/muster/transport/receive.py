"""The receiving end: whatever form a publication has, one whole safetensors file on this machine comes of it.

Law: a path is handed out only for a file that is whole, lies here, and has the digest that was published. Engines know
no transport and no form. Everything happens while they serve; blocking, so in a thread. No torch.

    memory ─ whole ─► its own path: nothing travels, and the engine's own digest proves it
    direct, checkpoint ─ fetch ─► whole ───────────────────────────────────────────────────────┐
                              └─► delta ─ base held? ─► copy, patch ───────────────────────────┤
                              │             └─ no: fetch its base, and that one's ... anchor ──┤
                              └─► adapter ─ merged with the weights the engine started from ───┴─► digest ─► path

One file is kept: the last version. What a killed process left is removed by `transport.files.reap`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from muster import clock
from muster.errors import PublicationError
from muster.transport import delta
from muster.transport.base import BaseWeights
from muster.transport.fetch import fetch, sibling, without_token
from muster.transport.files import SHARED_MEMORY, file_name, file_prefix, reap, roomy, whole_file
from muster.transport.pace import Pace
from muster.transport.tensors import ELEMENTS, Array, Header, describe, digest, encode_header, map_arrays, read_header
from muster.types import Publication, Version

_KINDS = ("fetched", "decoded")
"""Of files: as they came, and as they were made of others. They are named by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A whole safetensors file of exactly the version that was asked for, and what it took.

    Zeros: it was there already. `size_bytes` are those fetched, bases that were missing included.
    """

    path: Path
    transfer_s: float = 0.0
    decode_s: float = 0.0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: Path
    header: Header
    source: str  # for messages

    @property
    def form(self) -> str:
        return self.header.metadata.get("form", "whole")


class Receiver:
    """Receives for one engine. Threads may share it: a second call waits for the first.

    Example: `Receiver(label="engine-0", base=model_folder).receive(publication).path`
    """

    def __init__(
        self, *, label: str, base: Path | None = None, directory: Path = SHARED_MEMORY, timeout_s: float = 600.0
    ) -> None:
        """label: no two receivers of a process have the same; what dead processes received under it is removed.

        base: the model file or folder that the engine started from; adapters need it. directory: for what is received;
        without room, that for temporary files. timeout_s: of one call.
        """
        self._label, self._timeout_s = label, timeout_s
        self._directories = (directory, Path(tempfile.gettempdir()))
        self._base = BaseWeights(base)
        self._held: _File | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        for kind in _KINDS:
            reap(*self._directories, label=f"{label}.{kind}")

    def receive(self, publication: Publication) -> Received:
        """Raises `PublicationError`; then the version before is still there. Idempotent per version."""
        with self._lock:
            if self._held is not None and not self._held.path.exists():
                self._held = None  # somebody tidied up: as after a restart
            if self._held is not None and self._held.header.version == publication.version:
                return Received(path=self._held.path)
            try:
                return self._receive(publication)
            except PublicationError:
                if self._held is not None and not _is_proven(self._held, publication.dtype):
                    self._held = None  # what was held has been changed since: begin at an anchor next time
                raise
            except OSError as error:
                raise PublicationError(
                    f"version {publication.version.number} cannot be stored here: {error}; free space in "
                    + " or ".join(map(str, self._directories))
                ) from error
            finally:
                self._remove_all_but(self._held.path if self._held else None)

    def close(self) -> None:
        """Remove what was received, and end what is being received. Engines keep the pages that they have mapped."""
        self._closed.set()
        with self._lock:
            self._held = None
            self._remove_all_but(None)

    def _receive(self, publication: Publication) -> Received:
        began = clock.now()
        files = self._gather(publication)
        gathered = clock.now()
        newest = files[0]
        if newest.form == "whole" and publication.transport == "memory":
            return Received(path=newest.path)
        decoded = newest if newest.form == "whole" else self._decode(files, publication)
        self._prove(decoded, publication, adapted=newest.form == "adapter")
        fetched = (
            0 if publication.transport == "memory" else sum(f.header.size_bytes for f in files if f is not self._held)
        )
        self._held = decoded
        return Received(
            path=decoded.path, transfer_s=gathered - began, decode_s=clock.now() - gathered, size_bytes=fetched
        )

    def _gather(self, publication: Publication) -> list[_File]:
        """The publication's file and those that it builds on, newest first; the last one builds on none that is
        missing.
        """
        pace = Pace(max_bytes_per_s=publication.max_bytes_per_s, timeout_s=self._timeout_s, stopped=self._closed)
        location, wanted, size_bytes = publication.location, publication.version, publication.size_bytes
        files: list[_File] = []
        while True:
            file = self._bring(publication, location, wanted, size_bytes, pace)
            files.append(file)
            if file.form != "delta":
                return files
            base = Version(number=_count(file, "base_version"), digest=_said(file, "base_digest"))
            if base.number >= wanted.number:
                raise PublicationError(f"{file.source}: version {wanted.number} cannot build on {base.number}")
            if self._held is not None and self._held.header.version == base:
                return [*files, self._held]
            location, wanted = sibling(location, _said(file, "base_file")), base
            size_bytes = _count(file, "whole_bytes")  # at most

    def _bring(self, publication: Publication, location: str, wanted: Version, size_bytes: int, pace: Pace) -> _File:
        if publication.transport == "memory":
            path = Path(location)
            if not path.is_file():
                raise PublicationError(f"{path} is gone; publish again")
        else:
            path = self._place("fetched", wanted, size_bytes)
            with whole_file(path) as file:
                fetch(publication.transport, location, file, pace)
        source = without_token(location)
        header = read_header(path, name=source)
        if header.version != wanted and not (header.version is None and publication.transport == "memory"):
            raise PublicationError(f"{source} holds {header.version}, wanted is {wanted}; publish again")
        return _File(path=path, header=header, source=source)

    def _decode(self, files: list[_File], publication: Publication) -> _File:
        path = self._place("decoded", publication.version, files[-1].header.size_bytes)
        if files[0].form == "adapter":
            low_rank = map_arrays(files[0].path, files[0].header)
            scale = _fraction(files[0], "scale")
            self._base.merged_into(path, low_rank, scale=scale, version=publication.version, dtype=publication.dtype)
        else:
            *deltas, base = files
            _patched_into(path, base, list(reversed(deltas)), publication.version)
        return _File(path=path, header=read_header(path), source=files[0].source)

    def _prove(self, file: _File, publication: Publication, *, adapted: bool) -> None:
        if file.header.version == publication.version and _is_proven(file, publication.dtype):
            return
        raise PublicationError(
            f"{file.source}: what came of it is not {publication.dtype} with the digest of "
            f"version {publication.version.number}: "
            + (
                "this engine started from other weights than the adapter was trained on, or the file is corrupt"
                if adapted
                else "the file, or one that it builds on, is corrupt; publish again"
            )
        )

    def _place(self, kind: str, version: Version, size_bytes: int) -> Path:
        name = file_name(f"{self._label}.{kind}", os.getpid(), version.number)
        return roomy(self._directories[0], size_bytes) / name

    def _remove_all_but(self, kept: Path | None) -> None:
        for directory in self._directories:
            for kind in _KINDS:
                for path in directory.glob(f"{file_prefix(f'{self._label}.{kind}', os.getpid())}*"):
                    if path != kept:
                        path.unlink(missing_ok=True)


def _is_proven(file: _File, dtype: str) -> bool:
    """Whether the weights have the digest that the header names."""
    arrays = map_arrays(file.path, file.header)
    if any(array.dtype != ELEMENTS[dtype] for array in arrays.values()):
        return False
    return file.header.version is not None and digest(arrays, dtype) == file.header.version.digest


def _said(file: _File, key: str) -> str:
    if key not in file.header.metadata:
        raise PublicationError(f"{file.source}: corrupt header: no {key!r}")
    return file.header.metadata[key]


def _count(file: _File, key: str) -> int:
    text = _said(file, key)
    if not text.isdecimal():
        raise PublicationError(f"{file.source}: corrupt header: {key} is {text!r}")
    return int(text)


def _fraction(file: _File, key: str) -> float:
    text = _said(file, key)
    try:
        return float(text)
    except ValueError as error:
        raise PublicationError(f"{file.source}: corrupt header: {key} is {text!r}") from error


def _patched_into(path: Path, base: _File, deltas: list[_File], version: Version) -> None:
    """A copy of `base` with `deltas` applied, oldest first. Raises `PublicationError` when one does not fit."""
    arrays = map_arrays(base.path, base.header)
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
        flat = np.memmap(path.with_name(path.name + ".part"), dtype=f"u{itemsize}", mode="r+", offset=len(header))
        for link in deltas:
            positions, values = _read_delta(link, itemsize)
            if positions.size and not 0 <= positions.min() <= positions.max() < flat.size:
                raise PublicationError(f"{link.source}: corrupt delta: it changes what is not there")
            flat[positions] = values
        del flat


def _read_delta(link: _File, itemsize: int) -> tuple[Array, Array]:
    streams = map_arrays(link.path, link.header)
    return delta.unpack(streams, changed=_count(link, "changed"), itemsize=itemsize)
