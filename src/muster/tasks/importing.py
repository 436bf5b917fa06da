"""Directories of tasks in another format in, Harbor directories out: `muster tasks import`.

    SRC ─find─► each task ─convert─► DST/.<name>.… ─load_task─► DST/<name>      refused ones are reported, others go on

Law: a task is written whole or not at all, is loaded before it counts, and never replaces what is there.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from muster.errors import TaskError
from muster.tasks import terminal_bench
from muster.tasks.harbor import load_task

MARKER = "task.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Result of importing one task. `problem` is None when it was written to `target`."""

    name: str
    target: str
    problem: str | None = None
    notes: tuple[str, ...] = ()


def import_tasks(source: Path, destination: Path) -> list[Imported]:
    """Import `source`, a task or a directory of tasks, into directories below `destination`.

    Raises `TaskError` when there is no task at all, or nothing can be written there.
    """
    found = _find(source)
    try:
        destination.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TaskError(f"{destination}: {error.strerror}; name a directory") from None
    return [_import(task, destination) for task in found]


def render(imported: Sequence[Imported], console: Console) -> bool:
    """Print what became of each task; True when none was refused."""
    table = Table(box=None, pad_edge=False)
    table.add_column("task", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("what to know", overflow="fold")
    for it in imported:
        result = "[red]refused[/red]" if it.problem else "imported"
        table.add_row(escape(it.name), result, escape(it.problem or "; ".join(it.notes)))
    console.print(table)
    refused = sum(it.problem is not None for it in imported)
    console.print(f"{len(imported) - refused} imported, {refused} refused")
    return not refused


def to_json(imported: Sequence[Imported]) -> str:
    return json.dumps([asdict(it) for it in imported], indent=2) + "\n"


def _find(source: Path) -> list[Path]:
    if not source.is_dir():
        raise TaskError(f"{source}: no such directory")
    if (source / MARKER).exists():
        return [source.absolute()]
    found = sorted(path.parent for path in source.glob(f"*/{MARKER}"))
    if not found:
        raise TaskError(f"{source}: no {MARKER} in it or in its sub-directories")
    return found


def _import(source: Path, destination: Path) -> Imported:
    target = destination / source.name
    try:
        notes = _convert(source, target)
    except TaskError as problem:
        return Imported(name=source.name, target=str(target), problem=str(problem))
    return Imported(name=source.name, target=str(target), notes=tuple(notes))


def _convert(source: Path, target: Path) -> list[str]:
    if target.exists() or target.is_symlink():
        raise TaskError(f"{target}: exists; remove it, or import into another directory")
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    part = work / target.name
    try:
        notes = terminal_bench.convert(source, part)
        _check(part, target)
        part.rename(target)
    except OSError as error:
        raise TaskError(f"{error.filename or source}: {error.strerror}") from None
    finally:
        shutil.rmtree(work)
    return notes


def _check(part: Path, target: Path) -> None:
    """Check that what was written is a task. A problem is told with the place where the user would find it."""
    try:
        load_task(part)
    except TaskError as problem:
        raise TaskError(str(problem).replace(str(part.resolve()), str(target))) from None
