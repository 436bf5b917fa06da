"""Task suites. Law: as the package's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.app.cli.shared import JsonOption, out, tasks_app


@tasks_app.command(
    "generate",
    epilog="Examples:  muster tasks generate suite --per-family 24 --seed 1  ·  "
    "muster tasks generate suite --suite terminal --suite repo --difficulty 3 --per-family 4",
)
def tasks_generate(
    directory: Annotated[Path, typer.Argument(help="New directory for the tasks.")],
    suite: Annotated[
        list[str] | None, typer.Option(help="starter (the default), or several of terminal, repo, website, api.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same tasks.")] = 0,
    per_family: Annotated[int, typer.Option(min=1, help="Instances of each family.")] = 24,
    difficulty: Annotated[int | None, typer.Option(help="1 (a few commands) to 5; not of the starter suite.")] = None,
    heldout: Annotated[bool, typer.Option("--heldout", help="Draw from the held-out names.")] = False,
    family: Annotated[list[str] | None, typer.Option(help="Only these families. Repeatable.")] = None,
) -> None:
    """Generate task suites from a seed."""
    from muster_suites.write import generate

    made = generate(
        directory,
        suites=suite or ("starter",),
        seed=seed,
        per_family=per_family,
        split="heldout" if heldout else "train",
        difficulty=difficulty,
        families=family,
    )
    out.print(f"{len(made)} tasks in {directory}")


@tasks_app.command("list", epilog="Example:  muster tasks list suite")
def tasks_list(directory: Annotated[Path, typer.Argument(help="Directory of task directories.")]) -> None:
    """List the tasks of a directory, and what is wrong with the broken ones."""
    from muster.tasks.listing import render

    if not render(directory, out):
        raise typer.Exit(1)


@tasks_app.command("import", epilog="Example:  muster tasks import terminal-bench/tasks suite")
def tasks_import(
    source: Annotated[Path, typer.Argument(help="A legacy Terminal-Bench task, or a directory of them.")],
    destination: Annotated[Path, typer.Argument(help="Directory for the Harbor tasks; nothing in it is replaced.")],
    json_file: JsonOption = None,
) -> None:
    """Convert legacy Terminal-Bench tasks; exit 1 if any is refused."""
    from muster.tasks.importing import import_tasks, render, to_json

    imported = import_tasks(source, destination)
    if json_file:
        json_file.write_text(to_json(imported), encoding="utf-8")
    if not render(imported, out):
        raise typer.Exit(1)
