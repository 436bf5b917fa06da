"""The store of image layers: directories by key, below `<state_dir>/images`.

Law: a layer appears whole or not at all (written aside, then renamed), and never changes. The same key means the same
content, in every process; who comes second throws its own away. A killed writer leaves its half in its run directory,
which is reaped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from muster.sandbox.files import remove_tree
from muster.sandbox.namespace.storage.state import RunDirectory

BASE = "base-"
"""Begins the name of a first layer that lies over the host's own /usr."""
ROOTFS = "rootfs-"
"""Begins the name of a first layer that is a whole root file system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Layers, base first, and the key that says what they hold."""

    key: str
    layers: tuple[Path, ...]

    @property
    def host_usr(self) -> bool:
        """Whether it lies over the host's own /usr, or is a whole root file system."""
        return self.layers[0].name.startswith(BASE)

    def on_top(self, key: str, layer: Path) -> Stack:
        return Stack(key=key, layers=(*self.layers, layer))


class LayerStore:
    """Store of layers. Blocking file work: call it from a thread where it may take long."""

    def __init__(self, root: Path, run: RunDirectory) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self._run = run

    def path(self, key: str) -> Path:
        return self.root / key

    def has(self, key: str) -> bool:
        return self.path(key).is_dir()

    def layer(self, key: str, write: Callable[[Path], None]) -> Path:
        """The layer of that key, written by `write` into an empty directory unless it is there."""
        if not self.has(key):
            aside = self._run.new_directory()
            aside.chmod(0o755)
            write(aside)
            self.publish(aside, key)
        return self.path(key)

    def publish(self, aside: Path, key: str) -> Path:
        """Move a finished directory to its name. Another process may have been first; both made the same."""
        try:
            aside.rename(self.path(key))
        except OSError:
            if not self.has(key):
                raise
            remove_tree(aside)
        return self.path(key)


def make_directories(layer: Path, inner: Path | str) -> Path:
    """`layer / inner`, each missing directory open to all, whatever the umask: it covers those of the layers below."""
    made = layer
    for part in Path(inner).parts:
        made = made / part
        if not made.is_dir():
            made.mkdir()
            made.chmod(0o755)
    return made


def digest(*parts: object) -> str:
    """A key from parts whose `repr` says all that matters about them."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
