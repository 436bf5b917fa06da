"""Runs: train, evaluate, report, replay. Law: as the package's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.app.cli.shared import ConfigOption, JsonOption, SetOption, app, out
from muster.errors import UserError


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
    from muster.app import run
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
    from muster.app import run
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
    from muster.app import reporting

    if accounting:
        clean = [reporting.account(run, out) for run in runs]
        raise typer.Exit(0 if all(clean) else 1)
    reporting.report(runs, console=out, html=html, figures=figures, json_file=json_file)


@app.command(epilog="Examples:  muster replay g000012.3  ·  muster replay g000012.3 --run runs/a --json replay.json")
def replay(
    trajectory: Annotated[str, typer.Argument(help="Its id, as the report shows it.")],
    run_dir: Annotated[Path | None, typer.Option("--run", help="Default: the newest below runs/.")] = None,
    json_file: JsonOption = None,
) -> None:
    """Play a recorded trajectory again and compare every observation; exit 1 if it diverges."""
    from muster.app import replaying

    if not replaying.replay(trajectory, run_dir, console=out, json_file=json_file):
        raise typer.Exit(1)
