"""The receiving end: whatever form a publication has, one whole safetensors file on this machine comes of it.

Law: a path is handed out only for a file that is whole, lies here, and has the digest that was published. What lies
here already is not fetched: the last version that came, and the weights that the engine started from, which are known
by their digest alone. Engines know no transport and no form. Everything happens while they serve; blocking, so in a
thread. No torch.

    memory ─ whole ─► its own path: nothing travels, and the engine's own digest proves it
    direct, checkpoint ─ here? else fetch ─► whole ──────────────────────────────────────────────────┐
                              └─► delta ─ base here? ─► copy, patch ─────────────────────────────────┤
                              │             └─ no: fetch its base, and that one's ... anchor ────────┤
                              └─► adapter ─ merged with the weights the engine started from ─────────┴─► digest ─► path

One file is kept: the last version. What a killed process left is removed by `transport.files.reap`.
"""

from __future__ import annotations

import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from muster import clock
from muster.errors import PublicationError
from muster.transport.base import BaseWeights
from muster.transport.decode import LocalFile, opened, patched_into
from muster.transport.fetch import fetch, sibling
from muster.transport.files import SHARED_MEMORY, SPARE_BYTES, file_name, file_prefix, reap, roomy, whole_file
from muster.transport.pace import Pace
from muster.transport.storage import without_token
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


class Receiver:
    """Receives for one engine. Threads may share it: a second call waits for the first.

    Example: `Receiver(label="engine-0", base=model_folder).receive(publication).path`
    """

    def __init__(
        self,
        *,
        label: str,
        base: Path | None = None,
        directory: Path = SHARED_MEMORY,
        spare_bytes: int = SPARE_BYTES,
        timeout_s: float = 600.0,
        close_s: float = 2.0,
    ) -> None:
        """label: no two receivers of a process have the same; what dead processes received under it is removed.

        base: the model file or folder that the engine started from; adapters need it. directory: for what is received;
        without room for it and `spare_bytes` more, that for temporary files. timeout_s: of one call. close_s: how long
        `close` waits for a call that does not see its wish, since storage may not answer.
        """
        self._label, self._timeout_s, self._close_s = label, timeout_s, close_s
        self._directories = (directory, Path(tempfile.gettempdir()))
        self._spare_bytes = spare_bytes
        self._base = BaseWeights(base)
        self._held: LocalFile | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        for kind in _KINDS:
            reap(*self._directories, label=f"{label}.{kind}")

    def receive(self, publication: Publication) -> Received:
        """Raises `PublicationError`; then the version before is still there. Idempotent per version."""
        version = publication.version
        if not self._lock.acquire(timeout=self._timeout_s):
            raise PublicationError(f"version {version.number} waited {self._timeout_s:g} s for another to be received")
        try:
            return self._receive(publication)
        finally:
            self._remove_all_but(self._held.path if self._held else None)
            self._lock.release()

    def close(self) -> None:
        """Remove what was received, and end what is being received. Engines keep the pages that they have mapped."""
        self._closed.set()
        waited = self._lock.acquire(timeout=self._close_s)
        self._held = None
        self._remove_all_but(None)
        if waited:
            self._lock.release()

    def _receive(self, publication: Publication) -> Received:
        version = publication.version
        self._check_open()
        if self._held is not None and self._held.version == version:
            if self._held.proves(version, publication.dtype):
                return Received(path=self._held.path)
            self._held = None
        if self._held is not None and not self._held.whole:
            self._held = None  # somebody tidied up: as after a restart
        try:
            return self._fresh(publication)
        except PublicationError:
            self._forget_unproven(publication.dtype)
            raise
        except OSError as error:
            raise PublicationError(
                f"version {version.number} cannot be stored here: {error}; free space in "
                + " or ".join(map(str, self._directories))
            ) from error

    def _fresh(self, publication: Publication) -> Received:
        began = clock.now()
        files = self._gather(publication)
        gathered = clock.now()
        newest = files[0]
        if newest.form == "whole" and publication.transport == "memory":
            return Received(path=newest.path)
        decoded = newest if newest.form == "whole" else self._decode(files, publication)
        if not decoded.proves(publication.version, publication.dtype):
            raise self._unproven(newest, publication)
        self._check_open()
        fetched = sum(file.fetched_bytes for file in files if file is not self._held)
        self._held = decoded
        return Received(
            path=decoded.path, transfer_s=gathered - began, decode_s=clock.now() - gathered, size_bytes=fetched
        )

    def _gather(self, publication: Publication) -> list[LocalFile]:
        """The publication's file and those that it builds on, newest first; the last one builds on none that is
        missing.
        """
        pace = Pace(max_bytes_per_s=publication.max_bytes_per_s, timeout_s=self._timeout_s, stopped=self._closed)
        location, wanted, size_bytes = publication.location, publication.version, publication.size_bytes
        files: list[LocalFile] = []
        while True:
            file = self._receive_file(publication, location, wanted, size_bytes, pace)
            files.append(file)
            if file.form != "delta":
                return files
            base = Version(number=file.count("base_version"), digest=file.said("base_digest"))
            if base.number >= wanted.number:
                raise PublicationError(f"{file.source}: version {wanted.number} cannot build on {base.number}")
            if self._held is not None and self._held.version == base:
                return [*files, self._held]
            location, wanted = sibling(location, file.said("base_file")), base
            size_bytes = file.count("whole_bytes")  # at most

    def _receive_file(
        self, publication: Publication, location: str, wanted: Version, size_bytes: int, pace: Pace
    ) -> LocalFile:
        source = without_token(location)
        if publication.transport == "memory":
            path = Path(location)
            if not path.is_file():
                raise PublicationError(f"{path} is gone; publish again")
            file = opened(path, source)
        elif self._base.have(wanted.digest, publication.dtype):
            path = self._place("fetched", wanted, self._base.size_bytes(publication.dtype))
            self._base.written_to(path, version=wanted, dtype=publication.dtype)
            return opened(path, str(self._base.path))
        else:
            path = self._place("fetched", wanted, size_bytes)
            with whole_file(path) as target:
                fetch(publication.transport, location, target, pace)
            file = opened(path, source, fetched_bytes=path.stat().st_size)
        if file.version != wanted and not (file.version is None and publication.transport == "memory"):
            raise PublicationError(f"{source} holds {file.version}, wanted is {wanted}; publish again")
        return file

    def _decode(self, files: list[LocalFile], publication: Publication) -> LocalFile:
        version, dtype, newest = publication.version, publication.dtype, files[0]
        if newest.form == "adapter":
            path = self._place("decoded", version, self._base.size_bytes(dtype))
            scale = newest.fraction("scale")
            self._base.merged_into(path, newest.arrays(), scale=scale, version=version, dtype=dtype)
        else:
            *deltas, base = files
            path = self._place("decoded", version, base.header.size_bytes)
            patched_into(path, base, deltas[::-1], version)
        return opened(path, newest.source)

    def _unproven(self, newest: LocalFile, publication: Publication) -> PublicationError:
        number, dtype = publication.version.number, publication.dtype
        cause = "the file, or one that it builds on, is corrupt; publish again"
        if newest.form == "adapter" and not self._base.have(newest.said("base_digest"), dtype):
            cause = (
                f"this engine started from other weights ({self._base.path}) than the adapter was trained on; start "
                'it from those, or set trainer.adapter.publish = "merged"'
            )
        return PublicationError(
            f"{newest.source}: what came of it is not {dtype} with the digest of version {number}: {cause}"
        )

    def _forget_unproven(self, dtype: str) -> None:
        """Forget what others may have changed since: what is not proven now is not built on again."""
        self._base.forget()
        if self._held is not None and not (self._held.version and self._held.proves(self._held.version, dtype)):
            self._held = None

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise PublicationError("the receiver was closed")

    def _place(self, kind: str, version: Version, size_bytes: int) -> Path:
        name = file_name(f"{self._label}.{kind}", os.getpid(), version.number)
        return roomy(self._directories[0], size_bytes, self._spare_bytes) / name

    def _remove_all_but(self, kept: Path | None) -> None:
        for directory in self._directories:
            for kind in _KINDS:
                for path in directory.glob(f"{file_prefix(f'{self._label}.{kind}', os.getpid())}*"):
                    if path != kept:
                        path.unlink(missing_ok=True)
