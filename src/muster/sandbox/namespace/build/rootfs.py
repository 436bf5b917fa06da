"""Root file systems of others: a directory, a plain tar, or an image archive, as layers of ours.

    directory                        ─► one layer, a copy: a layer must never change, a directory may
    tar of a root file system        ─► one layer        (mmdebstrap, debootstrap, docker export, podman export)
    docker save, OCI layout          ─► one layer for each of its own, whiteouts turned into an overlay's
    + what any sandbox needs (mount points, /etc/hosts) ─► a last small layer

    mmdebstrap --variant=minbase bookworm debian.tar      makes a Debian one; then, in the configuration,
    [sandbox.images]
    "debian*" = "debian.tar"                              names that begin with debian are that

Law: the same content is the same layer. Content is read once: what an archive holds is remembered by its path, size,
inode and time of change; a directory is told by names, sizes, times, modes and owners, as rsync does.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, cast

from muster.errors import ConfigError, ImageError
from muster.sandbox.dockerfile.startup import Startup
from muster.sandbox.namespace.build import base
from muster.sandbox.namespace.build.archive import Unpacker, open_tar
from muster.sandbox.namespace.build.layers import ROOTFS, LayerStore, Stack, digest, make_directories
from muster.sandbox.namespace.build.oci import Manifest, read_manifest
from muster.sandbox.namespace.build.tree import LayerTree
from muster.types import HealthCheck

HOST = "host"
_RUNTIME_FILES = ("hosts", "hostname", "resolv.conf")  # a container runtime brings its own, too


@dataclass(frozen=True, slots=True, kw_only=True)
class RootFs:
    """A root file system, and what a container of it starts with."""

    stack: Stack
    startup: Startup


class RootFsStore:
    """Store of root file systems. `images` is `SandboxConfig.images`; `ConfigError` for a source that is not there.

    Example: `RootFsStore({"debian*": "/srv/debian.tar"}, store).load("debian:12")`
    """

    def __init__(self, images: Mapping[str, str], store: LayerStore) -> None:
        self._images = {pattern: _existing(pattern, source) for pattern, source in images.items()}
        self._store = store

    def load(self, name: str) -> RootFs | None:
        """Root file system of the image name; None: this machine's own /usr. Raises `ImageError`. Blocking."""
        pattern, source = next(((p, s) for p, s in self._images.items() if fnmatchcase(name, p)), ("", None))
        if source is None:
            return None
        what = f"sandbox.images: {pattern!r} = {str(source)!r}"
        rootfs = self._directory(source, what) if source.is_dir() else self._archive(source, what)
        return self._fitted(rootfs)

    def scratch(self) -> RootFs:
        """An empty root with the mount points alone."""
        return self._fitted(_rootfs("scratch", ()))

    def _directory(self, source: Path, what: str) -> RootFs:
        key = f"{ROOTFS}{_directory_digest(source)}"

        def copy(layer: Path) -> None:
            command = ["cp", "-a", "--reflink=auto", f"{source}/.", str(layer)]
            answer = subprocess.run(command, capture_output=True, text=True, check=False)
            if answer.returncode != 0:
                raise ImageError(f"{what}: cannot be copied: {answer.stderr.strip()[-500:]}")
            layer.chmod(0o755)

        return _rootfs(key, (self._store.layer(key, copy),))

    def _archive(self, source: Path, what: str) -> RootFs:
        status = source.stat()
        name = digest(str(source.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        note = self._store.root / "sources" / f"{name}.json"
        known = _read_note(note, self._store)
        if known is not None:
            return known
        with open_tar(source, what) as tar:
            manifest = read_manifest(tar, what)
        rootfs = self._plain(source, what) if manifest is None else self._image(source, manifest, what)
        _remember(note, rootfs)
        return rootfs

    def _plain(self, source: Path, what: str) -> RootFs:
        with source.open("rb") as file:
            key = f"{ROOTFS}{hashlib.file_digest(file, 'sha256').hexdigest()[:24]}"

        def unpack(layer: Path) -> None:
            with open_tar(source, what) as tar:
                Unpacker(layer).unpack(tar)

        return _rootfs(key, (self._store.layer(key, unpack),))

    def _image(self, source: Path, manifest: Manifest, what: str) -> RootFs:
        key, layers = "", list[Path]()
        with open_tar(source, what) as outer:
            for name in manifest.layers:
                with _member(outer, name, what) as blob:
                    key = digest(key, hashlib.file_digest(blob, "sha256").hexdigest())  # type: ignore[arg-type]
                key = key if layers else f"{ROOTFS}{key}"

                def unpack(layer: Path, name: str = name) -> None:
                    with _member(outer, name, what) as blob, open_tar(blob, f"{what}: {name}") as inner:
                        Unpacker(layer, whiteouts=True).unpack(inner)

                layers.append(self._store.layer(key, unpack))
        return _rootfs(key, tuple(layers), manifest.startup)

    def _fitted(self, rootfs: RootFs) -> RootFs:
        """With what a container runtime would add."""
        below = rootfs.stack
        key = digest("fit", below.key, base.DIRECTORIES, base.WRITTEN)
        key = key if below.layers else f"{ROOTFS}{key}"
        layer = self._store.layer(key, lambda layer: _fit(layer, below.layers))
        return replace(rootfs, stack=below.on_top(key, layer))


def _rootfs(key: str, layers: tuple[Path, ...], startup: Startup | None = None) -> RootFs:
    return RootFs(stack=Stack(key=key, layers=layers), startup=startup or Startup())


def _existing(pattern: str, source: str) -> Path | None:
    if source == HOST:
        return None
    path = Path(source).expanduser()
    if not path.exists():
        raise ConfigError(
            f"sandbox.images: {pattern!r} = {source!r}: there is no such directory or tar; "
            f"{HOST!r} means this machine's own /usr"
        )
    return path


def _fit(layer: Path, below: tuple[Path, ...]) -> None:
    tree = LayerTree((*below, layer))
    for name, mode in base.DIRECTORIES.items():
        if tree.entry(f"/{name}") is None:
            make_directories(layer, name).chmod(mode)
    for name in _RUNTIME_FILES if below else base.WRITTEN:
        (make_directories(layer, "etc") / name).write_text(base.WRITTEN[name])


def _directory_digest(root: Path) -> str:
    """Of the metadata of everything below `root`."""
    state = hashlib.sha256()
    todo = [root]
    while todo:
        directory = todo.pop()
        with os.scandir(directory) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                status = entry.stat(follow_symlinks=False)
                size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
                target = os.readlink(entry.path) if entry.is_symlink() else ""  # noqa: PTH115
                facts = (
                    os.path.relpath(entry.path, root),
                    size,
                    status.st_mode,
                    status.st_uid,
                    status.st_gid,
                    0 if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns,
                    target,
                )
                state.update(repr(facts).encode(errors="surrogateescape"))
                if entry.is_dir(follow_symlinks=False):
                    todo.append(Path(entry.path))
    return state.hexdigest()[:24]


def _member(tar: tarfile.TarFile, name: str, what: str) -> IO[bytes]:
    try:
        file = tar.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise ImageError(f"{what}: names {name}, and does not hold it")
    return file


def _remember(note: Path, rootfs: RootFs) -> None:
    note.parent.mkdir(exist_ok=True)
    aside = note.with_suffix(f".{os.getpid()}")
    record = {
        "key": rootfs.stack.key,
        "layers": [layer.name for layer in rootfs.stack.layers],
        "startup": asdict(replace(rootfs.startup, env=dict(rootfs.startup.env))),
    }
    aside.write_text(json.dumps(record))
    aside.rename(note)


def _read_note(note: Path, store: LayerStore) -> RootFs | None:
    if not note.is_file():
        return None
    try:
        record = cast(dict[str, Any], json.loads(note.read_text()))
    except ValueError:  # a machine that lost power may leave an empty file
        return None
    if not all(store.has(name) for name in record["layers"]):
        return None
    layers = tuple(store.path(name) for name in record["layers"])
    return _rootfs(record["key"], layers, _startup(record["startup"]))


def _startup(record: Mapping[str, Any]) -> Startup:
    health = record["health"]
    return Startup(
        env=record["env"],
        workdir=record["workdir"],
        user=record["user"],
        shell=tuple(record["shell"]),
        entrypoint=tuple(record["entrypoint"]),
        command=tuple(record["command"]),
        health=HealthCheck(**health) if health else None,
    )
