"""Plays a script on a task as an agent would, freezes what it leaves, and has it graded.

    state ─fork─► setup, script ─► freeze ─► grade × repeats ─┐      for each stage of the task
      └──────────────◄── frozen state ◄────── continues? ─────┘ ─► Played

Law: the script sees what an agent sees; the verifier sees what it always sees. A sandbox that the script destroyed
is an outcome. Every state that was frozen here is discarded here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from muster.errors import SandboxError, SandboxLost, boundary
from muster.sandbox.pool.pool import Pool
from muster.sandbox.port import Mount, Sandbox, Snapshot
from muster.types import Outcome, Task
from muster.verifier.attribution import after_loss
from muster.verifier.audit.stages import AuditStage, combined, stages_of
from muster.verifier.port import Verifier

_CHANGED_SHOWN = 12
_FOLDERS_READ = 100
_SETUP = 'cp -a /setup/. "$PWD"/ && { [ ! -f setup.sh ] || bash setup.sh; }'


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Script of one stage, in the agent's shell."""

    command: str
    timeout_s: float
    mounts: tuple[Mount, ...] = ()
    peek: tuple[str, ...] = ()  # files to be read afterwards


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Played script. `outcomes` has one entry per repeat. `changed` are some of the paths that it wrote or removed."""

    outcomes: tuple[Outcome, ...]
    changed: tuple[str, ...] = ()
    contents: Mapping[str, bytes] = field(default_factory=dict[str, bytes])  # of the files to be read that are there
    said: str = ""  # the end of the last output


class ScriptPlayer:
    """Player of scripts in sandboxes, whose final states a verifier grades.

    Example: `played = await ScriptPlayer(pool, verifier, jobs=4).play(task, pristine, script_of)`

    At most `jobs` plays go on at once; others wait.
    """

    def __init__(self, pool: Pool, verifier: Verifier, *, jobs: int) -> None:
        self._pool = pool
        self._verifier = verifier
        self._gate = asyncio.Semaphore(jobs)

    async def prepare(self, task: Task) -> Snapshot:
        """The state before the agent. Raises `ImageError`."""
        return await self._pool.backend.prepare(task.image)

    async def play(
        self,
        task: Task,
        pristine: Snapshot,
        script_of: Callable[[AuditStage], Script | None],
        *,
        repeats: int = 1,
        deadline_s: float | None = None,
    ) -> Played:
        """Play `script_of` each stage, and grade. None: nothing is done in it.

        deadline_s: of one verification; None, or more than the task's own: the task's own.
        """
        left: list[_Left] = []
        async with self._gate:
            try:
                rounds = await self._stages(task, pristine, script_of, repeats, deadline_s, left)
                return Played(
                    outcomes=tuple(combined(task, outcomes) for outcomes in rounds),
                    changed=_changed(left[-1].state, pristine) if left else (),
                    contents={path: text for one in left for path, text in one.contents.items()},
                    said=left[-1].said if left else "",
                )
            finally:
                for one in left:
                    await self._pool.backend.discard(one.state)

    async def _stages(
        self,
        task: Task,
        pristine: Snapshot,
        script_of: Callable[[AuditStage], Script | None],
        repeats: int,
        deadline_s: float | None,
        left: list[_Left],
    ) -> list[list[Outcome]]:
        """For each repeat the outcomes of the stages that were reached. What they leave is added to `left`."""
        rounds: list[list[Outcome]] = [[] for _ in range(repeats)]
        state = pristine
        for stage in stages_of(task):
            try:
                one = await self._act(stage, state, script_of(stage))
            except SandboxError as error:
                lost = after_loss(error) if isinstance(error, SandboxLost) else boundary(error)
                return [[*outcomes, lost] for outcomes in rounds]
            if one is not None:
                left.append(one)
                state = one.state
            graded = _with_deadline(stage.task, deadline_s)
            for outcomes in rounds:
                outcomes.append(await self._verifier.grade(graded, state, pristine))
            if not stage.continues_after(rounds[0][-1]):
                break
        return rounds

    async def _act(self, stage: AuditStage, state: Snapshot, script: Script | None) -> _Left | None:
        """Do what the stage says in a fork of `state`; None when there is nothing to do. Raises `SandboxError`."""
        if script is None and stage.setup is None:
            return None
        mounts = script.mounts if script is not None else ()
        if stage.setup is not None:
            mounts = (*mounts, Mount(source=stage.setup.resolve(), target="/setup"))
        said, contents = "", {}
        label = f"audit-{stage.task.id}"
        async with self._pool.lease(state, stage.task.limits, label, mounts=mounts) as lease:
            if stage.setup is not None:
                await lease.sandbox.run(_SETUP, stage.task.image.build_timeout_s)
            if script is not None:
                result = await lease.sandbox.run(script.command, script.timeout_s)
                said = result.output[-200:].strip()
                contents = await _read(lease.sandbox, script.peek)
            return _Left(state=await lease.sandbox.snapshot(), said=said, contents=contents)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """Remains of a stage."""

    state: Snapshot
    said: str
    contents: Mapping[str, bytes]


def _with_deadline(task: Task, deadline_s: float | None) -> Task:
    if deadline_s is None or deadline_s >= task.verifier.timeout_s:
        return task
    return replace(task, verifier=replace(task.verifier, timeout_s=deadline_s))


async def _read(sandbox: Sandbox, paths: tuple[str, ...]) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for path in paths:
        with suppress(OSError):  # a directory, or not there
            contents[path] = await sandbox.read(path)
    return contents


def _changed(state: Snapshot, pristine: Snapshot) -> tuple[str, ...]:
    own = (layer for layer in state.layers if layer not in pristine.layers)
    found = (path for layer in own for path in _files(layer))
    return tuple(dict.fromkeys(islice(found, _CHANGED_SHOWN)))


def _files(layer: Path) -> Iterator[str]:
    """Paths of files in a layer, as a sandbox sees them; of a few directories, since there may be any number."""
    for folder, directories, names in islice(os.walk(layer), _FOLDERS_READ):
        directories.sort()
        yield from (f"/{(Path(folder) / name).relative_to(layer)}" for name in sorted(names))
