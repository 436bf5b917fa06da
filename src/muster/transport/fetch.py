"""Fetching one published file, from wherever its transport left it.

Law: what is fetched is complete or an error; it is proven later, by digest. A connection that was cut is resumed where
it broke, as long as every try brings something.

    direct       http://HOST:PORT/TOKEN/NAME ─ range requests ─┐
    checkpoint   path, or a URL that fsspec opens ─────────────┴─ chunk by chunk, paced ─► file

For direct, torch.distributed was considered. Its collectives need all members: one dead engine blocks trainer and
engines alike, and a restarted one cannot join. Fetching point to point has none of that, and needs no torch.
"""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Generator
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol
from urllib.parse import urlsplit

import fsspec
from fsspec.implementations.local import LocalFileSystem

from muster.errors import PublicationError
from muster.transport.pace import Pace

_STALL_TIMEOUT_S = 10.0  # a connection that brings nothing for so long is cut
_TRIES_IN_VAIN = 3
_RETRY_PAUSE_S = 0.2


class _Cut(Exception):
    """The connection ended before the file."""


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


def fetch(transport: Literal["direct", "checkpoint"], location: str, file: BinaryIO, pace: Pace) -> None:
    """Append what lies at `location` to the empty `file`. Raises `PublicationError`; `OSError` of writing alone."""
    if transport == "direct":
        _fetch_direct(location, file, pace)
    else:
        _fetch_stored(location, file, pace)


def sibling(location: str, name: str) -> str:
    """Another file of the same folder or server."""
    return f"{location.rpartition('/')[0]}/{name}"


def without_token(location: str) -> str:
    """For messages: the address of a file on the trainer's server tells who may read it."""
    parts = urlsplit(location)
    if parts.scheme != "http":
        return location
    return f"http://{parts.netloc}/.../{parts.path.rpartition('/')[2]}"


def open_storage(location: str) -> tuple[Any, str]:
    """The fsspec file system of a URL or path, and the path in it. Raises `PublicationError` naming what to install."""
    try:
        return fsspec.url_to_fs(location)
    except (ImportError, ValueError) as error:
        raise PublicationError(f"{location}: {error}") from error


def _fetch_stored(location: str, file: BinaryIO, pace: Pace) -> None:
    storage, path = open_storage(location)
    try:
        source = storage.open(path, "rb")
    except OSError as error:
        raise PublicationError(f"{location} cannot be read ({_reason(error)}); publish again") from error
    with source:
        while chunk := _read(source, location, pace):
            file.write(chunk)
            pace.spent(len(chunk))


def _read(source: _Source, location: str, pace: Pace) -> bytes:
    try:
        return source.read(pace.chunk_bytes)
    except OSError as error:
        raise PublicationError(f"{location} cannot be read ({_reason(error)}); publish again") from error


def _fetch_direct(location: str, file: BinaryIO, pace: Pace) -> None:
    in_vain = 0
    while True:
        have = file.tell()
        try:
            with contextlib.closing(_rest(location, have, pace.chunk_bytes)) as chunks:
                for chunk in chunks:
                    file.write(chunk)
                    pace.spent(len(chunk))
            return
        except _Cut as cut:
            in_vain = in_vain + 1 if file.tell() == have else 0
            if in_vain == _TRIES_IN_VAIN:
                raise PublicationError(f"{without_token(location)} cannot be fetched: {cut}") from cut
        pace.wait(_RETRY_PAUSE_S)


def _rest(location: str, start: int, chunk_bytes: int) -> Generator[bytes]:
    """The file from `start` on. Raises `_Cut` when the connection fails, `PublicationError` when it is not there."""
    parts = urlsplit(location)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_STALL_TIMEOUT_S)
    try:
        connection.request("GET", parts.path, headers={"Range": f"bytes={start}-"})
        with connection.getresponse() as answer:
            if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
                raise PublicationError(
                    f"{without_token(location)}: the trainer answered {answer.status} {answer.reason}; "
                    "it keeps this version no longer: publish again"
                )
            while chunk := answer.read1(chunk_bytes):
                yield chunk
            if answer.length != 0:  # still to come
                raise _Cut("the connection ended early")
    except (OSError, http.client.HTTPException) as error:
        raise _Cut(_reason(error)) from error
    finally:
        connection.close()


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def local_path(location: str) -> Path | None:
    """The path behind a path or a file:// URL; None for storage elsewhere. Raises `PublicationError`."""
    storage, path = open_storage(location)
    return Path(path) if isinstance(storage, LocalFileSystem) else None
