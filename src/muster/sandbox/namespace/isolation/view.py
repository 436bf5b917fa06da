"""View of a sandbox at /: its layers, and whose system directories lie over them.

    host-derived image   layers                     + this host's /usr with the images' additions, read-only
    whole root           layers, /usr among them, writable
    with a toolchain     layers + a small top layer + the toolchain's /usr, /bin, ..., read-only

Law: only composes; `toolchain` knows what the directories are, `bubblewrap` how they are mounted.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from muster.sandbox.namespace.isolation.bubblewrap import Root
from muster.sandbox.namespace.isolation.toolchain import build_top, host_derived, stacks
from muster.sandbox.namespace.storage.state import Layer
from muster.sandbox.port import Snapshot


class Views:
    """Views of one backend. `directory`: of top layers, one per toolchain; `short`: see `RunDirectory.short`."""

    def __init__(self, directory: Path, short: Callable[[tuple[Path, ...]], tuple[Path, ...]]) -> None:
        self._directory = directory
        self._short = short
        self._numbers = itertools.count()
        self._tops: dict[str, Path] = {}

    async def root(
        self,
        layers: tuple[Path, ...],
        upper: Layer,
        *,
        toolchain: Snapshot | None = None,
        writable_usr: bool = False,
        devices: Path | None = None,
    ) -> Root:
        """`writable_usr`: a host-derived /usr takes writes, into `usr` beside the layer's own files."""
        system = stacks(layers, writable_usr=_usr(upper) if writable_usr else None) if host_derived(layers) else ()
        if toolchain is not None:
            system = stacks(toolchain.layers)
            layers = (*layers, await self._top(toolchain))
        return Root(
            layers=self._short(layers),
            upper=upper.fs,
            work=upper.work,
            system=tuple(replace(stack, sources=self._short(stack.sources)) for stack in system),
            devices=devices,
        )

    async def _top(self, toolchain: Snapshot) -> Path:
        """Of that state, made once."""
        if toolchain.id not in self._tops:
            directory = self._directory / str(next(self._numbers))
            directory.mkdir(parents=True)
            await asyncio.to_thread(build_top, toolchain.layers, directory)
            self._tops.setdefault(toolchain.id, directory)
        return self._tops[toolchain.id]


def _usr(upper: Layer) -> tuple[Path, Path]:
    directories = (upper.root / "usr", upper.root / "usr_work")
    for directory in directories:
        directory.mkdir(exist_ok=True)
    return directories
