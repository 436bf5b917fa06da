"""RUN --mount: what is bound into the sandbox of one RUN and never enters its layer.

cache ─► <state_dir>/caches/<id>: shared by builds, kept for ever
tmpfs ─► an empty directory           bind ─► a copy of files of the context, a stage or an image
both are gone when the command is
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from muster.sandbox.dockerfile.steps import Copy, RunMount
from muster.sandbox.files import remove_tree
from muster.sandbox.namespace.build.copying import FileLayer
from muster.sandbox.namespace.build.layers import digest
from muster.sandbox.port import Mount

_BOUND = "bound"


def bind_step(line: int, mount: RunMount) -> Copy:
    """File step that copies what is to be bound, into an empty directory."""
    return Copy(line=line, name="RUN --mount", sources=(mount.source,), target=f"/{_BOUND}", origin=mount.origin)


class RunMounts:
    """The mounts of one RUN. `bound`: for each bind mount the plan of its `bind_step`.

    Example:
        async with mounts.opened() as opened:
            ...
    """

    def __init__(
        self,
        mounts: tuple[RunMount, ...],
        *,
        bound: Mapping[RunMount, FileLayer],
        caches: Path,
        new_directory: Callable[[], Path],
    ) -> None:
        self._mounts = mounts
        self._bound = bound
        self._caches = caches
        self._new_directory = new_directory

    def key(self) -> tuple[object, ...]:
        """Key of what the command may read through them, as far as it is part of the image."""
        return tuple((mount, self._bound[mount].key("") if mount in self._bound else "") for mount in self._mounts)

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[tuple[Mount, ...]]:
        aside = self._new_directory()
        try:
            yield await asyncio.to_thread(self._make, aside)
        finally:
            await asyncio.to_thread(remove_tree, aside)

    def _make(self, aside: Path) -> tuple[Mount, ...]:
        return tuple(
            Mount(source=self._source(mount, aside), target=mount.target, writable=mount.writable)
            for mount in self._mounts
        )

    def _source(self, mount: RunMount, aside: Path) -> Path:
        """A directory, or a file, of the host."""
        if mount.kind == "cache":
            path = self._caches / digest(mount.identity)
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o755)
            return path
        path = aside / digest(mount)
        path.mkdir()
        if mount.kind == "tmpfs":
            path.chmod(0o1777)
            return path
        self._bound[mount].write(path)
        return path / _BOUND
