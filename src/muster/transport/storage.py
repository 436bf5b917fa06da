"""Storage that fsspec opens: a path, or a URL of any scheme whose package is installed.

Law: whatever package stands behind a URL, and whatever it raises, what leaves this file is an `OSError` that names the
place and tells no secret. Listings are asked for anew each time: another process writes there.

    Stored(URL) ─ reading, writing, remove, names ─► s3fs, gcsfs, adlfs, ... ─ any error of theirs ─► OSError
"""
# fsspec has no types
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

import fsspec
from fsspec.implementations.local import LocalFileSystem

from muster.errors import MusterError


class Source(Protocol):
    def read(self, size: int, /) -> bytes:
        """Raises `OSError`."""
        ...


@dataclass(frozen=True, slots=True)
class Stored:
    """A file or a folder. Every method raises `OSError`, and nothing else for what the world does.

    Example: `Stored("s3://bucket/run").names("muster-")`
    """

    url: str = field(repr=False)

    @contextlib.contextmanager
    def reading(self) -> Generator[Source]:
        with _answering(self.url):
            storage, path = fsspec.url_to_fs(self.url)
            file = storage.open(path, "rb")
        try:
            yield _Reader(self.url, file)
        finally:
            with _answering(self.url):
                file.close()

    @contextlib.contextmanager
    def writing(self) -> Generator[BinaryIO]:
        """File to write, removed if that ends in an error: many a package closes it then, and so keeps half of it."""
        try:
            with _answering(self.url):
                storage, path = fsspec.url_to_fs(self.url)
                storage.makedirs(path.rpartition("/")[0], exist_ok=True)
                with storage.open(path, "wb") as file:
                    yield file
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove()
            raise

    def remove(self) -> None:
        """Idempotent."""
        with _answering(self.url):
            storage, path = fsspec.url_to_fs(self.url)
            with contextlib.suppress(FileNotFoundError):
                storage.rm_file(path)

    def names(self, prefix: str) -> list[str]:
        """Of what lies in the folder and begins so, sorted. A folder that is not there is empty."""
        with _answering(self.url):
            storage, path = fsspec.url_to_fs(self.url)
            storage.invalidate_cache()
            try:
                entries: list[Any] = storage.ls(path, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        found = (str(entry).rstrip("/").rpartition("/")[2] for entry in entries)
        return sorted(name for name in found if name.startswith(prefix))


@dataclass(frozen=True, slots=True)
class _Reader:
    url: str
    file: Any

    def read(self, size: int, /) -> bytes:
        with _answering(self.url):
            return self.file.read(size)


def local_path(location: str) -> Path | None:
    """The path behind a path or a file:// URL; None for storage elsewhere. Raises `OSError`."""
    with _answering(location):
        storage, path = fsspec.url_to_fs(location)
    return Path(path) if isinstance(storage, LocalFileSystem) else None


def without_token(location: str) -> str:
    """For messages: no user, no password, no signature; and no token, which tells who may read from a trainer."""
    if "://" not in location:
        return location
    shown = re.sub(r"(?<=://)[^/]*@", "", location).partition("?")[0]
    parts = urlsplit(shown)
    return f"http://{parts.netloc}/.../{parts.path.rpartition('/')[2]}" if parts.scheme == "http" else shown


@contextlib.contextmanager
def _answering(url: str) -> Generator[None]:
    """Around calls of other people's packages alone, which have no common base for what they raise."""
    try:
        yield
    except (MusterError, AssertionError):
        raise
    except Exception as error:
        raise OSError(f"{without_token(url)}: {_message(error, url)}") from error


def _message(error: Exception, url: str) -> str:
    """Message of an error, and its kind where that alone says little: a path, a key, nothing."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    parts = urlsplit(url)
    for secret in filter(None, (parts.password, parts.query)):
        text = text.replace(secret, "...")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
