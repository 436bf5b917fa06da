"""Places of published files: shared memory, the same behind a server, a folder, or storage that fsspec opens.

Law: an address is given out only for a file that is complete. Four places, one shape: write, remove, names.

    payload ─► MemoryPlace ─► /dev/shm/NAME                                   (memory)
            ├► ServedPlace ─► /dev/shm/NAME ─► http://HOST:PORT/TOKEN/NAME    (direct)
            ├► FolderPlace ─► FOLDER/NAME, written aside and renamed          (checkpoint)
            └► RemotePlace ─► URL/NAME; object stores show a file when it is closed; what failed is removed
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from muster.publish.payload import Payload
from muster.transport.files import SHARED_MEMORY, SPARE_BYTES, has_room, whole_file
from muster.transport.serve import FileServer
from muster.transport.storage import Stored


class Place(Protocol):
    """Place of published files. It goes to the trainer's process, pickled and unused. All of it raises `OSError`."""

    def write(self, name: str, payload: Payload) -> str:
        """The address of the file. When it raises, nothing half-written has the name."""
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


class MemoryPlace:
    """Shared memory of this machine, or a folder where it has no room. Who has mapped a file keeps its pages."""

    def __init__(self, *, fallback: Path, directory: Path = SHARED_MEMORY, spare_bytes: int = SPARE_BYTES) -> None:
        self._first, self._fallback = FolderPlace(directory), FolderPlace(fallback)
        self._directory, self._spare_bytes = directory, spare_bytes

    def write(self, name: str, payload: Payload) -> str:
        fits = has_room(self._directory, payload.size_bytes, self._spare_bytes)
        return (self._first if fits else self._fallback).write(name, payload)

    def remove(self, name: str) -> None:
        self._first.remove(name)
        self._fallback.remove(name)

    def names(self, prefix: str) -> list[str]:
        return sorted({*self._first.names(prefix), *self._fallback.names(prefix)})


class ServedPlace:
    """A `MemoryPlace` behind a server of this process: the process that writes is the one that serves.

    The server listens as long as there is a file.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        advertised_host: str,
        fallback: Path,
        directory: Path = SHARED_MEMORY,
        spare_bytes: int = SPARE_BYTES,
    ) -> None:
        self._host, self._port, self._advertised_host = host, port, advertised_host
        self._files = MemoryPlace(fallback=fallback, directory=directory, spare_bytes=spare_bytes)
        self._server: FileServer | None = None

    def write(self, name: str, payload: Payload) -> str:
        server = self._server or FileServer(self._host, self._port, advertised_host=self._advertised_host)
        try:
            path = self._files.write(name, payload)
        except OSError:
            if self._server is None:
                server.close()
            raise
        self._server = server
        return server.offer(name, Path(path))

    def remove(self, name: str) -> None:
        if self._server is not None:
            self._server.withdraw(name)
            if self._server.idle:
                self._server.close()
                self._server = None
        self._files.remove(name)

    def names(self, prefix: str) -> list[str]:
        return self._files.names(prefix)


class RemotePlace:
    """Storage behind a URL. A file that was cut short by a crash has no reader: its address was never given out."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    def write(self, name: str, payload: Payload) -> str:
        location = f"{self._url}/{name}"
        with Stored(location).writing() as file:
            payload.write_to(file)
        return location

    def remove(self, name: str) -> None:
        Stored(f"{self._url}/{name}").remove()

    def names(self, prefix: str) -> list[str]:
        return Stored(self._url).names(prefix)
