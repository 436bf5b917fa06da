from __future__ import annotations

import errno
import io
import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from app.publications import export, history, same, weights
from muster.errors import PublicationError
from muster.publish.chain import ChainExporter
from muster.publish.payload import whole
from muster.publish.places import FolderPlace, MemoryPlace, RemotePlace, ServedPlace
from muster.transport.receive import Receiver
from muster.types import Version

PAYLOAD = whole(weights(), Version(number=1, digest="d"))
NAME = "muster-r-1-v1.safetensors"


class _Bounded(MemoryFile):
    def write(self, data: Any) -> int:
        assert isinstance(self.fs, SmallStorage)
        used = sum(f.getbuffer().nbytes for f in self.fs.store.values() if f is not self)
        if used + self.tell() + memoryview(data).nbytes > self.fs.limit_bytes:
            raise OSError(errno.ENOSPC, "the bucket is full")
        return io.BytesIO.write(self, data)


class SmallStorage(MemoryFileSystem):
    """Storage with room for `limit_bytes`. What is written shows at once, as on the worst of storages."""

    protocol = "small"
    store: dict[str, Any] = {}  # noqa: RUF012 (shared by all, as a bucket is)
    pseudo_dirs = [""]  # noqa: RUF012
    limit_bytes = 20_000

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode != "wb":
            return super()._open(path, mode=mode, **kwargs)
        self.store[path] = file = _Bounded(self, path)
        return file


class _Broken(MemoryFile):
    def read(self, size: int | None = -1) -> bytes:
        raise OSError("connection reset by the bucket")


class BrokenStorage(SmallStorage):
    """The same storage, now that it cannot be read."""

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        return _Broken(self, path) if mode == "rb" else super()._open(path, mode, **kwargs)


@pytest.fixture
def small():
    fsspec.register_implementation("small", SmallStorage, clobber=True)
    SmallStorage.store.clear()
    return "small://bucket/run"


@pytest.fixture(params=["folder", "remote", "served", "memory"])
def place(request, tmp_path, small):  # type: ignore[no-untyped-def]
    if request.param == "folder":
        return FolderPlace(tmp_path / "new" / "folder")
    if request.param == "remote":
        return RemotePlace(small)
    if request.param == "memory":
        return MemoryPlace(fallback=tmp_path, directory=tmp_path / "shm")
    return ServedPlace(host="127.0.0.1", port=0, advertised_host="", fallback=tmp_path, directory=tmp_path / "shm")


def test_what_was_written_is_there_until_it_is_removed(place):
    assert place.names("muster-r-") == []
    location = place.write(NAME, PAYLOAD)
    assert location.endswith(f"/{NAME}") and place.names("muster-r-") == [NAME] and place.names("muster-x-") == []
    place.remove(NAME)
    place.remove(NAME)
    assert place.names("muster-r-") == []


def test_a_full_storage_keeps_nothing_half_written_and_the_version_before_is_whole(small, tmp_path):
    exporter = ChainExporter(RemotePlace(small), transport="checkpoint", label="r", form="whole")
    first, second, third = history(3)
    kept = export(exporter, first, 1)
    with pytest.raises(PublicationError, match=r"version 2: .*full"):
        export(exporter, second, 2)
    assert len(RemotePlace(small).names("muster-")) == 1
    assert same(Receiver(label="e", directory=tmp_path).receive(kept).path, first)
    delta = ChainExporter(RemotePlace(small), transport="checkpoint", label="d", form="delta")
    RemotePlace(small).remove(kept.location.rpartition("/")[2])
    export(delta, second, 2)
    assert same(Receiver(label="f", directory=tmp_path).receive(export(delta, third, 3)).path, third)


def test_after_a_version_could_not_be_replaced_the_next_one_begins_a_chain(small, tmp_path):
    exporter = ChainExporter(RemotePlace(small), transport="checkpoint", label="r", form="delta")
    first, second, third = history(3)
    export(exporter, first, 1)
    export(exporter, second, 2)
    with pytest.raises(PublicationError, match="full"):
        export(exporter, second, 2)  # whole, for an engine that could not use the delta
    RemotePlace(small).remove(RemotePlace(small).names("muster-")[0])
    publication = export(exporter, third, 3)
    assert publication.form == "whole"
    assert same(Receiver(label="e", directory=tmp_path).receive(publication).path, third)


def test_storage_that_fails_while_it_is_read_is_an_error_and_nothing_stays_here(small, tmp_path):
    exporter = ChainExporter(RemotePlace(small), transport="checkpoint", label="r", form="whole")
    publication = export(exporter, weights(), 1)
    fsspec.register_implementation("small", BrokenStorage, clobber=True)
    with pytest.raises(PublicationError, match="reset by the bucket"):
        Receiver(label="e", directory=tmp_path).receive(publication)
    assert list(tmp_path.iterdir()) == []


def test_without_room_in_shared_memory_the_run_directory_is_served_from(tmp_path):
    (tmp_path / "shm").mkdir()
    served = ServedPlace(
        host="127.0.0.1",
        port=0,
        advertised_host="",
        fallback=tmp_path / "run",
        directory=tmp_path / "shm",
        spare_bytes=1 << 60,
    )
    served.write(NAME, PAYLOAD)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [NAME] and not list((tmp_path / "shm").iterdir())
    served.remove(NAME)


def test_engines_are_told_the_host_that_they_can_reach(tmp_path):
    served = ServedPlace(host="0.0.0.0", port=0, advertised_host="trainer.example", fallback=Path(tmp_path))
    assert served.write(NAME, PAYLOAD).startswith("http://trainer.example:")
    served.remove(NAME)


def test_a_server_that_has_nothing_to_serve_does_not_listen(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    served = ServedPlace(
        host="127.0.0.1", port=0, advertised_host="", fallback=tmp_path / "file" / "below", directory=tmp_path / "no"
    )
    before = threading.active_count()
    with pytest.raises(OSError, match="file"):
        served.write(NAME, PAYLOAD)
    assert threading.active_count() == before
