"""What a directory of tasks holds, for people: `muster tasks list`.

load_directory ─► rows(tasks) ─► render(console)        problems follow the table, one line each
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from muster.tasks.harbor import load_directory
from muster.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One task in the table."""

    id: str
    family: str
    max_turns: str
    solution: str
    instruction: str  # first line


def rows(tasks: Iterable[Task]) -> list[Row]:
    return [
        Row(
            id=task.id,
            family=task.family or "-",
            max_turns=str(task.max_turns or "-"),
            solution="yes" if task.solution else "no",
            instruction=task.instruction.splitlines()[0],
        )
        for task in tasks
    ]


def render(directory: Path, console: Console) -> bool:
    """Print the tasks and the problems of a directory; True when there is no problem.

    Raises `TaskError` when it holds no task at all. What a task author wrote is printed as it is, never as markup.
    """
    loaded = load_directory(directory)
    if loaded.tasks:
        console.print(_table(rows(loaded.tasks)))
    for problem in loaded.problems:
        console.print(f"[red]broken[/red] {escape(str(problem))}", soft_wrap=True)
    console.print(f"{len(loaded.tasks)} tasks, {len(loaded.problems)} broken")
    return not loaded.problems


def _table(listed: list[Row]) -> Table:
    """Names keep their width in a narrow terminal: they are what a reader copies. The instruction gives way."""
    table = Table(box=None, pad_edge=False)
    table.add_column("task", no_wrap=True, min_width=max(len(row.id) for row in listed))
    table.add_column("family", no_wrap=True, min_width=max(len(row.family) for row in listed))
    table.add_column("turns", justify="right", min_width=len("turns"))
    table.add_column("solution", min_width=len("solution"))
    table.add_column("instruction", overflow="ellipsis", no_wrap=True)
    for row in listed:
        cells = (row.id, row.family, row.max_turns, row.solution, row.instruction)
        table.add_row(*(escape(cell) for cell in cells))
    return table
