"""Exact disk quota: a writable layer on a file system of its own, so that a write past the limit fails at once.

    template (formatted once per size) ─copy, holes kept─► <layer>/image ─loop─► ext4 on <layer>: fs, work
    uncover ─► unmounted; the loop device clears itself; the image is a plain file to remove

Law: mounts lie below the run directory and nowhere else, so what a killed controller left is found by its place.
An image is sparse and no larger than the limit, its own tables included: a sandbox can use less of it, never more.
Copying and mounting take about 2 ms; a stock made ahead would save less than it costs to look after.

Why not tmpfs: its pages are memory of the sandbox that wrote them, and frozen layers would hold it for ever.
Project quotas of the host's file system need no mount, but most kernels and hosts come without them.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path

from muster.errors import ConfigError, SandboxStartError
from muster.sandbox.files import usage_bytes, usage_of_few_bytes
from muster.sandbox.namespace.storage.mounts import mount, unmount
from muster.sandbox.namespace.storage.state import Layer

MINIMUM_BYTES = 4 * 1024 * 1024  # a smaller image holds little beside its tables
BYTES_PER_INODE = 8192
_MKFS_TIMEOUT_S = 60.0
_FEW_ENTRIES = 64
_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LOOP_CONFIG = "<II52xI176x64x"  # struct loop_config: fd, block size, loop_info64 with lo_flags at 52, reserved
_LO_FLAGS_AUTOCLEAR = 4
# without it the kernel writes out all inode tables in the background: space of the host for nothing
_OPTIONS = "noinit_itable"


class Quota:
    """Covers layers with file systems of a given size.

    Example:
        await Quota(run.path).cover(layer, 256 * MIB)   # writes to layer.fs end at 256 MiB
    """

    def __init__(self, directory: Path) -> None:
        """`directory`: where templates are kept. Raises `ConfigError` where such file systems cannot be had."""
        if os.geteuid() != 0:
            raise ConfigError("sandbox.disk_quota: 'exact' needs root, to mount a file system: set 'polled'")
        if shutil.which("mkfs.ext4") is None:
            raise ConfigError("sandbox.disk_quota: 'exact' needs mkfs.ext4: install e2fsprogs, or set 'polled'")
        self._directory = directory
        self._templates: dict[int, Path] = {}
        self._lock = threading.Lock()

    async def cover(self, layer: Layer, limit_bytes: int) -> None:
        """Give an empty layer a file system that ends at `limit_bytes`, once. Raises `SandboxStartError`."""
        if not covered(layer):
            await asyncio.to_thread(self._cover, layer, limit_bytes)

    def _cover(self, layer: Layer, limit_bytes: int) -> None:
        size_bytes = max(limit_bytes, MINIMUM_BYTES)
        image = layer.root / "image"
        try:
            copy_sparse(self._template(size_bytes), image)
            _mount(image, layer.root)
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxStartError(f"no file system for a disk quota: {error}", {"layer": str(layer.root)}) from error

    def _template(self, size_bytes: int) -> Path:
        with self._lock:
            template = self._templates.get(size_bytes)
            if template is None:
                template = self._templates[size_bytes] = self._format(size_bytes)
            return template

    def _format(self, size_bytes: int) -> Path:
        content = self._directory / "quota-content"
        for name in ("fs", "work"):
            (content / name).mkdir(mode=0o755, parents=True, exist_ok=True)
        image = self._directory / f"quota-{size_bytes}.image"
        with image.open("wb") as file:
            file.truncate(size_bytes)
        line = ["mkfs.ext4", "-q", "-F", "-m", "0", "-i", str(BYTES_PER_INODE), "-O", "^has_journal"]
        line += ["-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", "-d", str(content), str(image)]
        subprocess.run(line, check=True, capture_output=True, timeout=_MKFS_TIMEOUT_S)
        return image


def covered(layer: Layer) -> bool:
    try:
        return layer.root.stat().st_dev != layer.root.parent.stat().st_dev
    except FileNotFoundError:  # removed meanwhile
        return False


def used_bytes(layer: Layer, *, stop_at: int | None = None) -> int:
    """Size of a layer: told by its own file system if it has one, else counted, up to about `stop_at`."""
    if not covered(layer):
        return usage_bytes(layer.root, stop_at=stop_at)
    told = os.statvfs(layer.root)
    return (told.f_blocks - told.f_bfree) * told.f_frsize


def used_at_once_bytes(layer: Layer) -> int | None:
    """As `used_bytes`, where that takes no longer than to hand it to a thread; None elsewhere."""
    return used_bytes(layer) if covered(layer) else usage_of_few_bytes(layer.root, entries=_FEW_ENTRIES)


async def writable_bytes(layer: Layer, places: tuple[Path, ...], *, stop_at: int | None) -> int:
    """Bytes that a layer and the directories beside it take, counted up to about `stop_at` each."""
    used = used_at_once_bytes(layer)
    if used is None:
        used = await asyncio.to_thread(used_bytes, layer, stop_at=stop_at)
    return used + sum([await asyncio.to_thread(usage_bytes, place, stop_at=stop_at) for place in places])


def uncover(directory: Path) -> None:
    """Take the file system off a layer's directory, if it has one; what is left there are plain files."""
    if os.path.ismount(directory):
        unmount(directory)


def copy_sparse(source: Path, target: Path) -> None:
    """Copy the data of a file and leave its holes. Raises `OSError`."""
    with source.open("rb") as reader, target.open("xb") as writer:
        size = os.fstat(reader.fileno()).st_size
        os.truncate(writer.fileno(), size)
        position = _next_data(reader.fileno(), 0)
        while position is not None:
            end = os.lseek(reader.fileno(), position, os.SEEK_HOLE)
            while position < end:
                position += os.copy_file_range(reader.fileno(), writer.fileno(), end - position, position, position)
            position = _next_data(reader.fileno(), end)


def _next_data(fd: int, position: int) -> int | None:
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # holes up to the end
            return None
        raise


def _mount(image: Path, directory: Path) -> None:
    with ExitStack() as stack:
        backing = stack.enter_context(image.open("r+b"))
        device = stack.enter_context(_Loop(backing.fileno()))
        mount(device.path, directory, "ext4", _OPTIONS)


class _Loop:
    """A loop device over an open file. It clears itself with its last user: this object, or a mount."""

    def __init__(self, backing_fd: int) -> None:
        with Path("/dev/loop-control").open("r+b", buffering=0) as control:
            while True:
                self.path = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
                self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.ioctl(
                        self._fd, _LOOP_CONFIGURE, struct.pack(_LOOP_CONFIG, backing_fd, 0, _LO_FLAGS_AUTOCLEAR)
                    )
                    return
                except OSError as error:
                    os.close(self._fd)
                    if error.errno != errno.EBUSY:  # another process took the same free one
                        raise

    def __enter__(self) -> _Loop:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
