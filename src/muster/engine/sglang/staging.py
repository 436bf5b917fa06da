"""Weights laid ready where an SGLang server finds them: a folder for each version, with one link in it.

    publication ─ Receiver ─► whole safetensors file ◄── link ── FOLDER/NUMBER-DIGEST/model.safetensors

Law: the server loads a folder, and looks in it for that name; it must see the folder under the same path. The file
belongs to the receiver: a version is there as long as its file is.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from muster.engine.port import Staged
from muster.transport.receive import Receiver
from muster.types import Publication, Version

_KEPT = 4  # versions; one that was served may come back
_NAME = "model.safetensors"


class Staging:
    """Staged versions of one server, as folders to load. Blocking: call `stage` in a thread.

    Example: `Staging(Receiver(label="replica-0")).stage(publication)`
    """

    def __init__(self, receiver: Receiver, folder: Path | None = None) -> None:
        """folder: where to lay them; a temporary one of this machine by default."""
        self._receiver = receiver
        self._folder = Path(tempfile.mkdtemp(prefix="muster-sglang-", dir=folder))
        self._folders: dict[Version, Path] = {}

    def stage(self, publication: Publication) -> Staged:
        """Idempotent. Raises `PublicationError`; then what was laid ready before still is."""
        version = publication.version
        if self.folder_of(version) is not None:
            return Staged()
        received = self._receiver.receive(publication)
        folder = self._folder / f"{version.number}-{version.digest[:16]}"
        folder.mkdir(exist_ok=True)
        (folder / _NAME).unlink(missing_ok=True)
        (folder / _NAME).symlink_to(received.path.resolve())
        self._folders[version] = folder
        while len(self._folders) > _KEPT:
            shutil.rmtree(self._folders.pop(next(iter(self._folders))))
        return Staged(transfer_s=received.transfer_s, decode_s=received.decode_s, size_bytes=received.size_bytes)

    def folder_of(self, version: Version) -> Path | None:
        """Folder to load for `version`; None: it is not staged, or its file is gone."""
        folder = self._folders.get(version)
        return folder if folder is not None and (folder / _NAME).exists() else None

    def close(self) -> None:
        self._receiver.close()
        shutil.rmtree(self._folder, ignore_errors=True)
