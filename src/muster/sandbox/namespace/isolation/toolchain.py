"""The system directories of a state, and how one state works with the tools of another.

    layers ─► OverlayStack per /usr, /bin, ...: what to mount there, from the lowest up
    toolchain ─► one small layer for the top of another state's layers, with its links and mount points + Stacks

Law: a layer's directory is read, never followed: whatever an agent put in place of /usr or /bin lies below the top
layer and under the mounts. Of /etc come the files that decide what a program loads: the loader's cache and its
preload list, the links of alternatives, and what Python runs when it starts.
"""

from __future__ import annotations

import os
import shutil
import stat
from functools import cache
from pathlib import Path

from muster.sandbox.namespace.isolation.bubblewrap import OverlayStack

HOST_PREFIX = "base-"
"""Name of a first layer whose /usr is this host's own; any other first layer is a whole root file system."""
SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_LOADER = ("ld.so.cache", "ld.so.preload")
_OPAQUE = "user.overlay.opaque"


def host_derived(layers: tuple[Path, ...]) -> bool:
    return layers[0].name.startswith(HOST_PREFIX)


def stacks(layers: tuple[Path, ...], *, writable_usr: tuple[Path, Path] | None = None) -> tuple[OverlayStack, ...]:
    """The real directories among `SYSTEM` of a state, to be mounted read-only.

    `writable_usr`: upper and work directory of a /usr that may be changed.
    """
    found = ((name, _sources(layers, name)) for name in SYSTEM)
    return tuple(
        OverlayStack(target=f"/{name}", sources=sources, writable=writable_usr if name == "usr" else None)
        for name, sources in found
        if sources
    )


def build_top(toolchain: tuple[Path, ...], directory: Path) -> None:
    """Fill `directory` with the layer that goes on top of another state."""
    directory.chmod(0o755)
    for name in SYSTEM:
        if _sources(toolchain, name):
            (directory / name).mkdir(mode=0o755)
        else:
            _same(toolchain, name, directory / name)
    etc = directory / "etc"
    etc.mkdir(mode=0o755)
    for name in _LOADER:
        _same(toolchain, f"etc/{name}", etc / name)
    for name in ("alternatives", *_python_settings(toolchain)):
        _same_directory(toolchain, f"etc/{name}", etc / name)


def _python_settings(toolchain: tuple[Path, ...]) -> set[str]:
    """Directories below /etc that Python's own links below /usr lead to: Debian's sitecustomize is one."""
    return {path.name for usr in _sources(toolchain, "usr") for path in (usr / "lib").glob("python3*")}


def _same_directory(layers: tuple[Path, ...], inner: str, target: Path) -> None:
    """A directory with the files and links that the state has in it, and nothing else."""
    target.mkdir(mode=0o755)
    os.setxattr(target, _OPAQUE, b"y")
    for name in {path.name for path in _directories(layers, inner) for path in path.iterdir()}:
        if _top(layers, f"{inner}/{name}") is not None:
            _same(layers, f"{inner}/{name}", target / name)


def _same(layers: tuple[Path, ...], inner: str, target: Path) -> None:
    """Copy what the state has at `inner`; a whiteout for nothing."""
    entry = _top(layers, inner)
    if entry is None:
        os.mknod(target, stat.S_IFCHR, os.makedev(0, 0))
    elif entry.is_symlink() or entry.is_file():
        shutil.copy2(entry, target, follow_symlinks=False)


def _sources(layers: tuple[Path, ...], name: str) -> tuple[Path, ...]:
    """Directories whose union is /`name`, lowest first; none if it is a link or missing."""
    if not host_derived(layers):
        return _directories(layers, name)
    host = Path("/") / name
    if name == "usr":
        return (host, *(path for path in _directories(layers, name) if not _empty(path)))
    return (host,) if host.is_dir() and not host.is_symlink() else ()


@cache
def _empty(directory: Path) -> bool:
    """Of a frozen layer, whose name no other layer gets."""
    return not any(directory.iterdir())


def _directories(layers: tuple[Path, ...], inner: str) -> tuple[Path, ...]:
    found: list[Path] = []
    for layer in reversed(layers):
        path = layer / inner
        if path.is_symlink() or not path.is_dir():
            if os.path.lexists(path):  # a link, a file or a whiteout hides what is below
                break
            continue
        found.insert(0, path)
        if _OPAQUE in os.listxattr(path):
            break
    return tuple(found)


def _top(layers: tuple[Path, ...], inner: str) -> Path | None:
    """The file or link that the state has at `inner`."""
    for layer in reversed(layers):
        path = layer / inner
        if os.path.lexists(path):
            mode = path.lstat().st_mode
            return None if stat.S_ISCHR(mode) else path
    return None
