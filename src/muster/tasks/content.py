"""One digest over everything a task directory holds.

Law: names, kinds, execute bits and bytes count; times, owners and the order of the file system do not. A
symbolic link counts as the text it holds and is never followed, so no link can make the digest depend on (or
leak) anything outside the directory.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from muster.errors import TaskError


def directory_digest(root: Path) -> str:
    """Hex sha256. Raises `TaskError` for a file that is neither regular, directory nor link."""
    total = hashlib.sha256()
    for relative, entry in sorted(_entries(root, "")):
        kind, content = _content(entry)
        name = os.fsencode(relative)
        # lengths first: no two directories can write the same bytes
        total.update(b"%c %d %d\n" % (kind, len(name), len(content)))
        total.update(name)
        total.update(content)
    return total.hexdigest()


def _entries(directory: Path | str, prefix: str) -> list[tuple[str, os.DirEntry[str]]]:
    found: list[tuple[str, os.DirEntry[str]]] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            relative = prefix + entry.name
            found.append((relative, entry))
            if entry.is_dir(follow_symlinks=False):
                found += _entries(entry.path, f"{relative}/")
    return found


def _content(entry: os.DirEntry[str]) -> tuple[bytes, bytes]:
    """A letter for the kind, and what of the content counts."""
    mode = entry.stat(follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        return b"l", os.fsencode(Path(entry.path).readlink())
    if stat.S_ISDIR(mode):
        return b"d", b""
    if not stat.S_ISREG(mode):
        raise TaskError(f"{entry.path}: neither a file, a directory nor a link; remove it")
    return (b"x" if mode & stat.S_IXUSR else b"f"), Path(entry.path).read_bytes()
