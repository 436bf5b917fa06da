"""Listing of a directory of tasks, for people: `muster tasks list`.

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
class ListedTask:
    """One task in the table."""

    id: str
    family: str
    max_turns: str
    steps: str
    network: str  # of the agent
    solution: str
    instruction: str  # first line


def rows(tasks: Iterable[Task]) -> list[ListedTask]:
    return [
        ListedTask(
            id=task.id,
            family=task.family or "-",
            max_turns=str(task.max_turns or "-"),
            steps=str(len(task.steps) or "-"),
            network=_network(task),
            solution="yes" if _solved(task) else "no",
            instruction=task.instruction.splitlines()[0],
        )
        for task in tasks
    ]


def _network(task: Task) -> str:
    hosts = task.limits.egress
    return "none" if not hosts else "any" if "*" in hosts else f"{len(hosts)} hosts"


def _solved(task: Task) -> bool:
    """Whether there is a reference solution, of every step where there are steps."""
    return all(step.solution for step in task.steps) if task.steps else task.solution is not None


def render(directory: Path, console: Console) -> bool:
    """Print the tasks and the problems of a directory; True when there is no problem.

    Raises `TaskError` when it holds no task at all. What a task author wrote is printed as it is, never as markup.
    """
    loaded = load_directory(directory)
    if loaded.tasks:
        console.print(_table(rows(loaded.tasks), console.width))
    for problem in loaded.problems:
        console.print(f"[red]broken[/red] {escape(str(problem))}", soft_wrap=True)
    console.print(f"{len(loaded.tasks)} tasks, {len(loaded.problems)} broken")
    return not loaded.problems


def _table(listed: list[ListedTask], width: int) -> Table:
    """Names keep their width in a narrow terminal: they are what a reader copies. The instruction gives way."""
    headings = ("task", "family", "turns", "steps", "network", "solution")
    cells = [(row.id, row.family, row.max_turns, row.steps, row.network, row.solution) for row in listed]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    table = Table(box=None, pad_edge=False)
    for index, (heading, size) in enumerate(zip(headings, widths, strict=True)):
        table.add_column(heading, no_wrap=True, min_width=size, justify="left" if index < 2 else "right")
    left = width - sum(widths) - 2 * len(widths)
    table.add_column("instruction", no_wrap=True, overflow="ellipsis", max_width=max(left, len("instruction")))
    for row, fixed in zip(listed, cells, strict=True):
        table.add_row(*(escape(cell) for cell in (*fixed, row.instruction)))
    return table
