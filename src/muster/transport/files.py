"""Files that come whole or not at all, and are found again when their owner was killed.

Law: a reader sees a finished file or none. A file's name says whose it is; what a dead process left is removed by the
next one. Nothing is flushed to storage: published files are worthless after a crash of the machine, every reader
proves what it reads, and a flush would be a good part of the publication's latency.

    whole_file(path) ─► path.part ─ written ─► renamed to path                  an error: nothing stays
    muster-LABEL-PID-vNUMBER.safetensors     reap(): no process PID on this machine ─► removed
"""

from __future__ import annotations

import re
import shutil
import socket
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

SHARED_MEMORY = Path("/dev/shm")
SPARE_BYTES = 64 * 1024 * 1024
"""Room left to others in shared memory; a full /dev/shm breaks processes that have nothing to do with us."""

PREFIX = "muster-"
"""How the name of every such file begins."""

_NAME = re.compile(r"muster-(?P<label>.+)-(?P<pid>\d+)-v\d+\.safetensors(\.part)?")


@contextmanager
def whole_file(path: Path) -> Generator[BinaryIO]:
    """A file that gets its name when the block has ended well. Raises `OSError`; then nothing of it stays."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w+b") as file:
            yield file
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def file_prefix(label: str, pid: int | None = None) -> str:
    """Prefix of the names of all files of one owner, or of all owners of a label."""
    stem = f"{PREFIX}{_plain(label)}-"
    return stem if pid is None else f"{stem}{pid}-v"


def file_name(label: str, pid: int, number: int) -> str:
    """Example: `file_name("run/1", 77, 3)` is "muster-run_1-77-v3.safetensors"."""
    return f"{file_prefix(label, pid)}{number}.safetensors"


def has_room(directory: Path, size_bytes: int, spare_bytes: int = SPARE_BYTES) -> bool:
    """Whether a file of this size fits and leaves `spare_bytes`. False where there is no directory."""
    return directory.is_dir() and shutil.disk_usage(directory).free >= size_bytes + spare_bytes


def roomy(directory: Path, size_bytes: int, spare_bytes: int = SPARE_BYTES) -> Path:
    """`directory` when it has room for the file, else the machine's folder for temporary files.

    Containers often give shared memory 64 MB: staging is slower from a disk, and still works.
    """
    return directory if has_room(directory, size_bytes, spare_bytes) else Path(tempfile.gettempdir())


def on_this_host(label: str) -> str:
    """The label of files in a place that several machines share: a process number says nothing elsewhere."""
    return f"{label}.{socket.gethostname()}"


def is_orphan(name: str, *, shared: bool = False) -> bool:
    """Whether a file of this name belonged to a process of this machine that is gone.

    shared: it lies where other machines put theirs, so that only labels `on_this_host` are this one's.
    """
    found = _NAME.fullmatch(name)
    if found is None or (shared and not found["label"].endswith(_plain(on_this_host("")))):
        return False
    return not Path(f"/proc/{found['pid']}").exists()


def _plain(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", label)


def reap(*directories: Path, label: str | None = None) -> list[Path]:
    """Remove what dead processes of this machine left; returns the files. Other people's stay.

    Default: where receivers put theirs. label: theirs alone.
    """
    pattern = f"{PREFIX}*-v*" if label is None else f"{file_prefix(label)}*"
    orphans = [
        path
        for directory in directories or (SHARED_MEMORY, Path(tempfile.gettempdir()))
        for path in sorted(directory.glob(pattern))
        if is_orphan(path.name)
    ]
    return [path for path in orphans if _removed(path)]


def _removed(path: Path) -> bool:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # somebody else's, in a folder where everyone may write
        return False
    return True
