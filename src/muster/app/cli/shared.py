"""The command tree, and what commands share: options, the console, how a benchmark ends."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from muster.extras import DISTRIBUTION
from muster.lab.result import BenchResult

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Post-training for language-model agents, scheduled by the time to a trainable batch.",
)
tasks_app = typer.Typer(no_args_is_help=True, help="Make, list and check task suites in Harbor format.")
bench_app = typer.Typer(no_args_is_help=True, help="Measure both sides of a claim in one run, as ratios.")
engine_app = typer.Typer(no_args_is_help=True, help="Emulate a server, and fit the emulation to a live one.")


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"muster {importlib.metadata.version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


app.add_typer(tasks_app, name="tasks")
app.add_typer(engine_app, name="engine")
app.add_typer(bench_app, name="bench")

out = Console(highlight=False)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file; without one, the starter run's defaults.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="Override a key: --set schedule.max_lag=1. Repeatable.")
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the result as JSON to this file.")]
CheckOption = Annotated[bool, typer.Option("--check", help="Exit with 1 when a target is missed.")]


def conclude(result: BenchResult, json_file: Path | None, *, check: bool) -> None:
    """Write what was measured; with `check`, exit 1 when a target was missed."""
    if json_file:
        json_file.write_text(result.to_json(), encoding="utf-8")
    if check and not result.met:
        raise typer.Exit(1)
