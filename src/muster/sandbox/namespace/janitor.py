"""Cleaning up behind closed sandboxes, off everyone's path. Law: batches; a removal costs no one a wait.

close ─► Retired ─┐                    every SWEEP_S while there is work, in one hop to a thread:
discard ─► layers ┴─► waiting ─sweep─► processes gone? ─► cgroups removed, layers removed
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from muster import clock
from muster.sandbox.cgroup import Cgroup
from muster.sandbox.files import remove_tree
from muster.sandbox.namespace.processes.supervisor import Exit
from muster.sandbox.namespace.storage.quota import uncover
from muster.sandbox.namespace.storage.state import RunDirectory

SWEEP_S = 0.1  # long enough to make batches, short enough to keep few dead cgroups


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """Remains of a closed sandbox. `exited` is None if it never had a process."""

    exited: asyncio.Future[Exit] | None
    cgroup: Cgroup
    layers: tuple[Path, ...]


class Janitor:
    """Removes what is handed to it. `close` waits until all is gone."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._retired: list[Retired] = []
        self._cgroups: list[Cgroup] = []
        self._trash: list[Path] = []
        self._sweeper: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def retire(self, retired: Retired) -> None:
        self._retired.append(retired)
        self._wake()

    def release(self, layers: tuple[Path, ...]) -> None:
        """One holder less for these layers; those without any are removed."""
        self._trash += self._run.release(layers)
        if self._trash:
            self._wake()

    async def close(self) -> None:
        self._hurry.set()
        if self._sweeper is not None:
            await self._sweeper

    def _wake(self) -> None:
        if self._sweeper is None or self._sweeper.done():
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        while self._retired or self._cgroups or self._trash:
            with suppress(TimeoutError):
                async with clock.timeout(SWEEP_S):
                    await self._hurry.wait()
            if self._hurry.is_set():
                for retired in self._retired:
                    if retired.exited is not None:
                        await retired.exited
            self._collect()
            cgroups, trash = self._cgroups, self._trash
            self._cgroups, self._trash = [], []
            # the kernel counts a dying process for a moment: what does not go yet is tried again
            self._cgroups += await asyncio.to_thread(_remove, cgroups, trash)

    def _collect(self) -> None:
        gone = [r for r in self._retired if r.exited is None or r.exited.done()]
        self._retired = [r for r in self._retired if r not in gone]
        for retired in gone:
            self._cgroups.append(retired.cgroup)
            self._trash += self._run.release(retired.layers)


def _remove(cgroups: list[Cgroup], trash: list[Path]) -> list[Cgroup]:
    """Returns the cgroups that would not go yet."""
    left = [cgroup for cgroup in cgroups if not cgroup.remove()]
    for directory in trash:
        uncover(directory)
        remove_tree(directory)
    return left
