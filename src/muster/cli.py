"""The commands. Law: parse, call one function of the package, print; no logic lives here.

Heavy parts are imported inside their command, so that `muster --help` starts at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from muster.errors import MusterError, UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Post-training for language-model agents, scheduled by the time to a trainable batch.",
)
tasks_app = typer.Typer(no_args_is_help=True, help="Make, list and check task suites in Harbor format.")
bench_app = typer.Typer(no_args_is_help=True, help="Measure both sides of a claim in one run, as ratios.")
app.add_typer(tasks_app, name="tasks")
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


@app.command(
    epilog="Examples:  muster train  ·  muster train -c run.toml -o runs/a -s loop.steps=50  ·  "
    "muster train --resume runs/a"
)
def train(
    config: ConfigOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Run directory; default runs/<time>.")] = None,
    overrides: SetOption = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Continue the run in this directory.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Log lines instead of the live view.")] = False,
) -> None:
    """Train a model as an agent on verified tasks; evaluate before, during and after."""
    from muster import run
    from muster.config import load, to_toml

    if resume is not None:
        if config or output or overrides:
            raise UserError("--resume takes everything from the run's directory; leave the other options out")
        run.resume(resume, console=out, plain=plain)
        return
    resolved = load(config, overrides or ())
    if dry_run:
        out.print(to_toml(resolved), markup=False, soft_wrap=True)
        return
    run.train(resolved, output, console=out, plain=plain)


@app.command("eval", epilog="Examples:  muster eval  ·  muster eval --run runs/a  ·  muster eval -s model=/models/x")
def evaluate(
    config: ConfigOption = None,
    overrides: SetOption = None,
    run_dir: Annotated[Path | None, typer.Option("--run", help="Evaluate this run's last checkpoint.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Directory for the record.")] = None,
) -> None:
    """Pass rate on held-out tasks, through the serving engine, with its interval and fingerprint."""
    from muster import run
    from muster.config import load

    if run_dir is not None:
        if config or overrides:
            raise UserError("--run takes the configuration from the run; leave --config and --set out")
        run.evaluate_run(run_dir, output, console=out)
        return
    run.evaluate(load(config, overrides or ()), output, console=out)


@app.command(
    epilog="Examples:  muster report runs/a  ·  muster report runs/a runs/b  ·  muster report runs/a --html a.html"
)
def report(
    runs: Annotated[list[Path], typer.Argument(help="One run, or several to compare.")],
    html: Annotated[Path | None, typer.Option("--html", help="Write a self-contained page.")] = None,
    figures: Annotated[Path | None, typer.Option("--figures", help="Write PNG figures into this directory.")] = None,
    json_file: JsonOption = None,
    accounting: Annotated[
        bool, typer.Option("--accounting", help="Only count trajectories; exit 1 if any is lost or trained twice.")
    ] = False,
) -> None:
    """The six questions about a run, answered from its journal; works while it runs and after a crash."""
    from muster import reporting

    if accounting:
        clean = [reporting.account(run, out) for run in runs]
        raise typer.Exit(0 if all(clean) else 1)
    reporting.report(runs, console=out, html=html, figures=figures, json_file=json_file)


@app.command(epilog="Example:  muster doctor")
def doctor() -> None:
    """Check this machine: namespaces, cgroups, bubblewrap, torch, disk; say what to install."""
    from muster.doctor import examine

    if not examine(out):
        raise typer.Exit(1)


@tasks_app.command("generate", epilog="Example:  muster tasks generate suite --per-family 24 --seed 1")
def tasks_generate(
    directory: Annotated[Path, typer.Argument(help="New directory for the tasks.")],
    seed: Annotated[int, typer.Option(help="Same seed, same tasks.")] = 0,
    per_family: Annotated[int, typer.Option(min=1, help="Instances of each family.")] = 24,
    heldout: Annotated[bool, typer.Option("--heldout", help="Draw from the held-out names.")] = False,
    family: Annotated[list[str] | None, typer.Option(help="Only these families. Repeatable.")] = None,
) -> None:
    """Generate the starter suite."""
    from muster.tasks.starter.generate import generate

    split = "heldout" if heldout else "train"
    made = generate(directory, seed=seed, per_family=per_family, split=split, families=family)
    out.print(f"{len(made)} tasks in {directory}")


@tasks_app.command("list", epilog="Example:  muster tasks list suite")
def tasks_list(directory: Annotated[Path, typer.Argument(help="Directory of task directories.")]) -> None:
    """List the tasks of a directory, and what is wrong with the broken ones."""
    from muster.tasks.listing import render

    if not render(directory, out):
        raise typer.Exit(1)


@bench_app.command("engine", epilog="Example:  muster bench engine --streams 1 --streams 32 --check")
def bench_engine(
    model: Annotated[str, typer.Option(help="As in the configuration.")] = "starter",
    streams: Annotated[list[int] | None, typer.Option(help="Concurrent requests. Repeatable.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each; the median counts.")] = 3,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Tokens per second beside Hugging Face generate, and log-probabilities beside its forward pass."""
    from muster.bench.engine import run_engine_bench

    result = run_engine_bench(model=model, streams=streams or (1, 16, 32, 64), repeats=repeats)
    out.print(result.table())
    if json_file:
        json_file.write_text(result.to_json(), encoding="utf-8")
    if check and not result.met:
        raise typer.Exit(1)


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2, a failure one line and exit code 1."""
    try:
        app()
    except UserError as error:
        Console(stderr=True).print(f"[bold red]muster:[/] {_plain(error)}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except MusterError as error:
        Console(stderr=True).print(f"[bold red]muster:[/] {_plain(error)}", highlight=False, soft_wrap=True)
        sys.exit(1)


def _plain(error: BaseException) -> str:
    return str(error).replace("[", "\\[")
