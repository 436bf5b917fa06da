"""Cleaning up behind closed sandboxes, off everyone's path: killed and removed, never stopped gracefully.

close ─► retire ──► remove, forced ─► images that waited for it
discard ─► image ─► remove; in use by a fork or by a later snapshot: when the next container is gone
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from muster.errors import SandboxError
from muster.sandbox.docker.daemon import Daemon, Missing
from muster.sandbox.docker.labels import remove_container

_AT_ONCE = 4  # removals; a daemon that removes many at once answers nobody else


class ContainerJanitor:
    """Removes what is handed to it. `close` waits until all was tried; labels find the rest."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._chores: set[asyncio.Task[None]] = set()
        self._images: set[str] = set()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def retire(self, container: str) -> None:
        self._chore(self._container(container))

    def discard(self, image: str) -> None:
        self._images.add(image)
        self._chore(self._try_images())

    async def close(self) -> None:
        while self._chores:
            await asyncio.gather(*self._chores)

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    async def _container(self, container: str) -> None:
        async with self._turns:
            with suppress(SandboxError):  # found by its label later
                await remove_container(self._daemon, container)
        await self._try_images()

    async def _try_images(self) -> None:
        async with self._turns:
            for image in sorted(self._images):
                with suppress(SandboxError):  # still in use
                    with suppress(Missing):
                        await self._daemon.call("remove image", lambda api, i=image: api.remove_image(i, noprune=True))
                    self._images.discard(image)
