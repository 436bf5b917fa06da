"""Files of a container through the daemon, as tar archives. Works for any daemon, running container or not.

    path ─► HEAD (what is there? a link: again with its text) ─► GET or PUT an archive of one member

Law: what comes out of a container is data: no archive is ever unpacked. A link is followed by its text, inside the
container.
"""

from __future__ import annotations

import base64
import errno
import io
import json
import posixpath
import tarfile
from dataclasses import dataclass

from muster.sandbox.docker.daemon import Client

_MAX_LINKS = 40
_DIRECTORY, _SYMLINK = 1 << 31, 1 << 27  # bits of Go's file mode, which the daemon reports
_ALL_SPECIAL = 0x8F28_0000  # directory, link, device, pipe, socket, irregular


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPath:
    """Kind of what is at a path. `link`: the text of a symbolic link, else empty."""

    directory: bool
    regular: bool
    link: str


def entry(api: Client, container: str, path: str) -> ArchivedPath | None:
    """None for nothing. A link at the last component is not followed, those before it are. Raises SDK errors."""
    url = f"{api.base_url}/v{api.api_version}/containers/{container}/archive"
    answer = api.head(url, params={"path": path}, timeout=api.timeout)
    with answer:
        if answer.status_code == 404:
            api.inspect_container(container)  # raises when it is the container that is missing
            return None
        answer.raise_for_status()
        said = json.loads(base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"]))
    mode = int(said["mode"])
    link = str(said["linkTarget"]) if mode & _SYMLINK else ""
    return ArchivedPath(directory=bool(mode & _DIRECTORY), regular=not mode & _ALL_SPECIAL, link=link)


def read(api: Client, container: str, path: str) -> bytes:
    """Content of a regular file. Raises `OSError`, SDK errors."""
    path, found = _resolved(api, container, path)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "no such file", path)
    chunks, _ = api.get_archive(container, path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        member = archive.next()
        file = archive.extractfile(member) if member is not None else None
        if file is None:
            raise OSError(errno.EINVAL, "not a regular file", path)
        return file.read()


def write(api: Client, container: str, path: str, data: bytes) -> None:
    """Create or replace a file, owned by root; its directory must exist. Raises `OSError`, SDK errors."""
    path, _ = _resolved(api, container, path)
    directory = entry(api, container, posixpath.dirname(path) + "/")
    if directory is None:
        raise FileNotFoundError(errno.ENOENT, "no such directory", posixpath.dirname(path))
    member = tarfile.TarInfo(posixpath.basename(path))
    member.size, member.mode = len(data), 0o644
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(member, io.BytesIO(data))
    api.put_archive(container, posixpath.dirname(path), archive.getvalue())


def plain_directory(api: Client, container: str, path: str) -> bool:
    """Whether `path` is made of real directories or is missing. A link there would lead a mount somewhere else."""
    parts = [p for p in path.split("/") if p]
    for depth in range(1, len(parts) + 1):
        found = entry(api, container, "/" + "/".join(parts[:depth]))
        if found is None:
            return True
        if not found.directory:
            return False
    return True


def _resolved(api: Client, container: str, path: str) -> tuple[str, ArchivedPath | None]:
    """Resolve `path` to where an open of it for reading or writing arrives, as open(2) does it."""
    for _ in range(_MAX_LINKS):
        found = entry(api, container, path)
        if found is None or not found.link:
            if found is not None and found.directory:
                raise IsADirectoryError(errno.EISDIR, "is a directory", path)
            if found is not None and not found.regular:
                raise OSError(errno.EINVAL, "not a regular file", path)
            return path, found
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), found.link))
    raise OSError(errno.ELOOP, "too many symbolic links", path)
