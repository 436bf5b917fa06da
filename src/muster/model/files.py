"""Directories written whole or not at all.

Law: a reader sees a complete directory or none, whatever is killed when.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_directory(target: Path) -> Generator[Path]:
    """Yield an empty temporary directory beside `target`; on success it is synced and becomes `target`.

    If another process finished the same `target` first, theirs stays and ours is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield temporary
        for path in sorted(temporary.rglob("*")):
            sync(path)
        sync(temporary)
        try:
            temporary.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync(path: Path) -> None:
    """Flush a file's or a directory's content to storage."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
