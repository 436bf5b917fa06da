"""Storage whose package raises errors of its own, which are no errors of the operating system."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from app.publications import export, history, left, receiver, same, weights
from muster.errors import ConfigError, PublicationError
from muster.publish.chain import ChainExporter
from muster.publish.config import CheckpointConfig
from muster.publish.places import RemotePlace
from muster.publish.transports import exporter_for
from muster.transport.storage import Stored, local_path, without_token

URL = "rude://agent:hunter2@bucket/run"


class ClientError(Exception):
    """As such packages have it."""


class _RudeFile(MemoryFile):
    def read(self, size: int | None = -1) -> bytes:
        RudeStorage.meet("read")
        return io.BytesIO.read(self, size)

    def write(self, data: Any) -> int:
        half = memoryview(data)[: memoryview(data).nbytes // 2] if "write" in RudeStorage.refused else data
        io.BytesIO.write(self, half)
        RudeStorage.meet("write")
        return memoryview(data).nbytes


class RudeStorage(MemoryFileSystem):
    """A bucket. It refuses what is named in `refused`, and remembers a listing as long as it is let."""

    protocol = "rude"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    refused: ClassVar[set[str]] = set()
    listings: ClassVar[dict[str, list[Any]]] = {}

    @classmethod
    def meet(cls, what: str) -> None:
        if what in cls.refused:
            raise ClientError(f"An error occurred (SlowDown) for agent:hunter2 when calling {what}")

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return "/" + str(path).removeprefix("rude://").partition("?")[0].strip("/")

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        self.meet("open")
        if mode == "wb":
            self.store[path] = _RudeFile(self, path)
        elif path not in self.store:
            raise FileNotFoundError(path)
        self.store[path].seek(0)
        return self.store[path]

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        self.meet("ls")
        if path not in self.listings:
            self.listings[path] = [name for name in self.store if name.startswith(f"{path}/")]
        return self.listings[path]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listings.clear()

    def rm_file(self, path: str) -> None:
        self.meet("rm")
        self.store.pop(path, None)


@pytest.fixture(autouse=True)
def rude():
    fsspec.register_implementation("rude", RudeStorage, clobber=True)
    for kept in (RudeStorage.store, RudeStorage.refused, RudeStorage.listings):
        kept.clear()
    return RudeStorage


def in_bucket(**settings: Any) -> ChainExporter:
    return ChainExporter(RemotePlace(URL), transport="checkpoint", label="run", **settings)


@pytest.mark.parametrize("call", ["open", "read"])
def test_what_a_package_raises_while_an_engine_reads_is_an_error_that_names_the_place_and_the_fix(rude, tmp_path, call):
    publication = export(in_bucket(), weights(), 1)
    rude.refused.add(call)
    with pytest.raises(
        PublicationError, match=r"rude://bucket/run/muster-run-.*ClientError: .*SlowDown.*credentials"
    ) as e:
        receiver(tmp_path).receive(publication)
    assert "hunter2" not in str(e.value) and left(tmp_path) == []


@pytest.mark.parametrize("call", ["open", "write"])
def test_what_it_raises_while_a_trainer_writes_is_an_error_and_nothing_half_written_stays(rude, tmp_path, call):
    exporter, (old, new) = in_bucket(form="delta"), history(2)
    first = export(exporter, old, 1)
    rude.refused.add(call)
    with pytest.raises(PublicationError, match=r"version 2: cannot write .*rude://bucket/run.*ClientError") as e:
        export(exporter, new, 2)
    assert "hunter2" not in str(e.value) and list(rude.store) == [f"/{first.location.removeprefix('rude://')}"]
    rude.refused.clear()
    second = export(exporter, new, 2)
    assert second.base == first.version and same(receiver(tmp_path).receive(second).path, new)


def test_storage_that_refuses_at_the_start_is_a_mistake_in_the_configuration(rude, tmp_path):
    rude.refused.add("ls")
    with pytest.raises(ConfigError, match=r"publish\.transport\.location: rude://bucket/run: ClientError") as e:
        exporter_for(CheckpointConfig(location=URL), run_label="r", directory=tmp_path)
    assert "hunter2" not in str(e.value)


@pytest.mark.parametrize("call", ["ls", "rm"])
def test_storage_that_refuses_at_the_end_fails_no_run(rude, call):
    exporter = in_bucket()
    export(exporter, weights(), 1)
    rude.refused.add(call)
    exporter.clear()
    rude.refused.clear()
    exporter.clear()
    assert rude.store == {}


def test_what_another_process_wrote_since_is_seen(rude):
    assert Stored(URL).names("muster-") == []
    rude.store["/agent:hunter2@bucket/run/muster-x"] = None
    assert Stored(URL).names("muster-") == ["muster-x"]


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(OSError, match="nowhere"), Stored("nowhere://bucket/f").reading():
        pass


def test_no_message_tells_a_secret(tmp_path):
    assert without_token("http://h:1/secret/name") == "http://h:1/.../name"
    assert without_token("ftp://me:pass@h/a/b") == "ftp://h/a/b"
    assert without_token("https://h/a/b?sig=secret") == "https://h/a/b"
    assert without_token("simplecache::s3://key:pass@bucket/b") == "simplecache::s3://bucket/b"
    assert without_token("/a/b@c?d") == "/a/b@c?d"
    assert "pass" not in repr(Stored("ftp://me:pass@h/a"))


def test_the_path_behind_a_location(tmp_path: Path):
    assert local_path(str(tmp_path)) == local_path(f"file://{tmp_path}") == tmp_path
    assert local_path("memory://x") is None
