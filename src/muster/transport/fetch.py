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
from typing import BinaryIO, Literal
from urllib.parse import urlsplit

from muster.errors import PublicationError
from muster.transport.pace import Pace
from muster.transport.storage import Stored, without_token

_STALL_TIMEOUT_S = 10.0  # a connection that brings nothing for so long is cut
_TRIES_IN_VAIN = 3
_RETRY_PAUSE_S = 0.2


class _Cut(Exception):
    """The connection ended before the file."""


def fetch(transport: Literal["direct", "checkpoint"], location: str, file: BinaryIO, pace: Pace) -> None:
    """Append what lies at `location` to the empty `file`. Raises `PublicationError`; `OSError` of writing alone."""
    chunks = _served(location, file, pace) if transport == "direct" else _stored(location, pace.chunk_bytes)
    with contextlib.closing(chunks):
        for chunk in chunks:
            file.write(chunk)
            pace.spent(len(chunk))


def sibling(location: str, name: str) -> str:
    """Another file of the same folder or server."""
    return f"{location.rpartition('/')[0]}/{name}"


def _stored(location: str, chunk_bytes: int) -> Generator[bytes]:
    """Raises `PublicationError`."""
    try:
        with Stored(location).reading() as source:
            while chunk := source.read(chunk_bytes):
                yield chunk
    except OSError as error:
        raise PublicationError(
            f"cannot read {error}; publish again, or give this machine the network, the package and the "
            "credentials to read there"
        ) from error


def _served(location: str, file: BinaryIO, pace: Pace) -> Generator[bytes]:
    """All of it, with as many connections as it takes. What was yielded is in `file` before the next is asked for."""
    in_vain = 0
    while True:
        have = file.tell()
        try:
            with contextlib.closing(_rest(location, have, pace.chunk_bytes)) as chunks:
                yield from chunks
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
    except (OSError, http.client.HTTPException, UnicodeError) as error:  # UnicodeError: of a host's name
        raise _Cut(_reason(error)) from error
    finally:
        connection.close()


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
