from __future__ import annotations

import http.client
import io
import socket
import struct
import threading
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
import pytest

from app.publications import cutting_server
from muster import clock
from muster.errors import PublicationError
from muster.transport.fetch import fetch, sibling
from muster.transport.pace import Pace
from muster.transport.serve import FileServer

CONTENT = bytes(range(256)) * 5000


class Impatient(Pace):
    """It keeps its limits and never pauses."""

    def wait(self, delay_s: float) -> None:
        super().wait(0.0)


def pace(**limits) -> Pace:  # type: ignore[no-untyped-def]
    return Pace(stopped=threading.Event(), **{"max_bytes_per_s": None, "timeout_s": 30.0} | limits)


def fetched(transport, location: str) -> bytes:  # type: ignore[no-untyped-def]
    file = io.BytesIO()
    fetch(transport, location, file, Impatient(max_bytes_per_s=None, timeout_s=30.0, stopped=threading.Event()))
    return file.getvalue()


@pytest.fixture
def server():
    made = FileServer("127.0.0.1", 0)
    yield made
    made.close()


def status(url: str, path: str, headers: dict[str, str] | None = None) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    connection.request("GET", path, headers=headers or {})
    with connection.getresponse() as answer:
        answer.read()
    connection.close()
    return answer.status


@pytest.mark.parametrize("content", [b"", b"x", CONTENT])
def test_a_served_file_arrives(server, tmp_path, content):
    (tmp_path / "f").write_bytes(content)
    assert fetched("direct", server.offer("f", tmp_path / "f")) == content


def test_several_receivers_at_once_all_get_it(server, tmp_path):
    (tmp_path / "f").write_bytes(CONTENT)
    url = server.offer("f", tmp_path / "f")
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda: got.append(fetched("direct", url))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [CONTENT] * 6


def test_without_the_token_or_by_another_name_there_is_nothing(server, tmp_path):
    (tmp_path / "f").write_bytes(CONTENT)
    url = server.offer("f", tmp_path / "f")
    path = urlsplit(url).path
    assert status(url, path) == 206
    token = path.split("/")[1]
    for other in (
        "/f",
        "/wrong/f",
        f"/{token}/g",
        f"/{token}/../f",
        f"/{token}/{tmp_path}/f",
        "/",
    ):
        assert status(url, other) == 404, other


def test_a_range_beyond_the_file_is_refused(server, tmp_path):
    (tmp_path / "f").write_bytes(b"four")
    url = server.offer("f", tmp_path / "f")
    assert status(url, urlsplit(url).path, {"Range": "bytes=5-"}) == 416
    assert status(url, urlsplit(url).path, {"Range": "bytes=1-2"}) == 416


@pytest.mark.parametrize("how", ["withdrawn", "removed"])
def test_what_is_kept_no_longer_is_an_error_that_does_not_tell_the_token(server, tmp_path, how):
    (tmp_path / "f").write_bytes(CONTENT)
    url = server.offer("f", tmp_path / "f")
    server.withdraw("f") if how == "withdrawn" else (tmp_path / "f").unlink()
    with pytest.raises(PublicationError, match="publish again") as caught:
        fetched("direct", url)
    assert urlsplit(url).path.split("/")[1] not in str(caught.value)


def test_a_cut_connection_is_resumed_where_it_broke():
    with cutting_server(CONTENT, [1000, 5, 70_000]) as (url, asked):
        assert fetched("direct", url) == CONTENT
    assert asked == [0, 1000, 1005, 71_005]


def test_one_that_brings_nothing_again_and_again_is_an_error():
    with cutting_server(CONTENT, [10, 0, 0, 0, 0]) as (url, asked):
        with pytest.raises(PublicationError, match="ended early"):
            fetched("direct", url)
        assert asked == [0, 10, 10, 10]


def test_nobody_listening_is_an_error(tmp_path):
    gone = FileServer("127.0.0.1", 0)
    url = gone.offer("f", tmp_path)
    gone.close()
    with pytest.raises(PublicationError, match="refused"):
        fetched("direct", url)


def test_the_cap_holds_and_the_deadline_too(server, tmp_path):
    (tmp_path / "f").write_bytes(CONTENT)
    url = server.offer("f", tmp_path / "f")
    with pytest.raises(PublicationError, match="within"):
        fetch("direct", url, io.BytesIO(), pace(max_bytes_per_s=len(CONTENT), timeout_s=0.3))


def test_a_full_disk_here_is_not_taken_for_the_network(server, tmp_path):
    (tmp_path / "f").write_bytes(CONTENT)
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="No space"):  # noqa: PTH123
        fetch("direct", server.offer("f", tmp_path / "f"), full, pace())


def test_storage_is_a_path_a_file_url_or_anything_that_fsspec_opens(tmp_path):
    (tmp_path / "f").write_bytes(CONTENT)
    memory = fsspec.filesystem("memory")
    memory.pipe("/muster-fetch/f", CONTENT)
    try:
        for location in (str(tmp_path / "f"), f"file://{tmp_path}/f", "memory://muster-fetch/f"):
            assert fetched("checkpoint", location) == CONTENT
    finally:
        memory.rm("/muster-fetch", recursive=True)


@pytest.mark.parametrize("location", ["/nowhere/at/all", "memory://nowhere"])
def test_what_is_missing_in_storage_is_an_error_that_names_it(location):
    with pytest.raises(PublicationError, match=r"nowhere.*publish again"):
        fetched("checkpoint", location)


def test_storage_that_nobody_knows_is_an_error_that_says_so():
    with pytest.raises(PublicationError, match="quux"):
        fetched("checkpoint", "quux://bucket/f")


def test_a_file_beside_another():
    assert sibling("/a/b", "c") == "/a/c" and sibling("s3://a/b", "c") == "s3://a/c"


def test_a_host_that_has_no_such_name_is_an_error():
    with pytest.raises(PublicationError, match="cannot be fetched"):
        fetched("direct", "http://trainer..example:1/token/f")


def test_a_receiver_that_was_killed_leaves_no_word_on_standard_error(server, capsys):
    url = server.offer("f", Path("/nowhere"))
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
        connection.send(b"GET")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
    assert status(url, "/") == 404  # connections are accepted in turn: by now the other one has a thread
    while any("process_request_thread" in thread.name for thread in threading.enumerate()):
        clock.block(0.001)
    assert capsys.readouterr().err == ""
