"""Where published files lie: shared memory behind a server, a folder, or storage that fsspec opens.

Law: an address is given out only for a file that is complete. Three places, one shape: write, remove, clear, reap.

    payload ─► ServedPlace ─► /dev/shm/NAME ─► http://HOST:PORT/TOKEN/NAME    (direct)
            ├► FolderPlace ─► FOLDER/NAME, written aside and renamed          (checkpoint)
            └► RemotePlace ─► URL/NAME; object stores show a file when it is closed; what failed is removed
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Protocol

from muster.publish.payload import Payload
from muster.transport.fetch import open_storage
from muster.transport.files import SHARED_MEMORY, has_room, whole_file
from muster.transport.serve import FileServer


class Place(Protocol):
    """It travels to the trainer's process, pickled, before it has written anything."""

    def write(self, name: str, payload: Payload) -> str:
        """The address of the file. Raises `OSError`; then nothing half-written has the name."""
        ...

    def remove(self, name: str) -> None:
        """Idempotent."""
        ...

    def names(self, prefix: str) -> list[str]:
        """Of the files there, half-written ones included, that begin so."""
        ...


class FolderPlace:
    """A folder. A local disk or a shared file system: what engines on other machines read is up to its mount."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, payload: Payload) -> str:
        path = self._folder / name
        with whole_file(path) as file:
            payload.write_to(file)
        return str(path)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def names(self, prefix: str) -> list[str]:
        return sorted(path.name for path in self._folder.glob(f"{prefix}*"))


class RemotePlace:
    """Storage behind a URL. A file that was cut short by a crash has no reader: its address was never given out."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def write(self, name: str, payload: Payload) -> str:
        location = f"{self._url}/{name}"
        storage, path = open_storage(location)
        storage.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            with storage.open(path, "wb") as file:
                payload.write_to(file)
        except OSError:
            self.remove(name)
            raise
        return location

    def remove(self, name: str) -> None:
        storage, path = open_storage(f"{self._url}/{name}")
        if storage.exists(path):
            storage.rm_file(path)

    def names(self, prefix: str) -> list[str]:
        storage, path = open_storage(self._url)
        if not storage.isdir(path):
            return []
        found = (str(entry).rpartition("/")[2] for entry in storage.ls(path, detail=False))
        return sorted(name for name in found if name.startswith(prefix))


class ServedPlace:
    """Shared memory of the trainer's machine, or a folder where it has no room, behind a server of this process.

    The server listens from the first write to the last removal: the process that writes is the one that serves.
    """

    def __init__(
        self, *, host: str, port: int, advertised_host: str, fallback: Path, directory: Path = SHARED_MEMORY
    ) -> None:
        self._host, self._port, self._advertised_host = host, port, advertised_host
        self._directories = (directory, fallback)
        self._server: FileServer | None = None

    def write(self, name: str, payload: Payload) -> str:
        first, fallback = self._directories
        path = (first if has_room(first, payload.size_bytes) else fallback) / name
        if self._server is None:
            self._server = FileServer(self._host, self._port, advertised_host=self._advertised_host)
        with whole_file(path) as file:
            payload.write_to(file)
        return self._server.offer(name, path)

    def remove(self, name: str) -> None:
        if self._server is not None:
            self._server.withdraw(name)
            if self._server.idle:
                self._server.close()
                self._server = None
        for directory in self._directories:
            (directory / name).unlink(missing_ok=True)

    def names(self, prefix: str) -> list[str]:
        return sorted(path.name for directory in self._directories for path in directory.glob(f"{prefix}*"))


def on_this_host(run_label: str) -> str:
    """The label of files in a place that several machines share: a process number says nothing elsewhere."""
    return f"{run_label}.{socket.gethostname()}"
