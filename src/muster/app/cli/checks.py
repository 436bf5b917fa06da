"""Commands before and beside a run: audit, simulation, plan, doctor. Law: as the package's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.app.cli.shared import CheckOption, ConfigOption, JsonOption, SetOption, app, conclude, out


@app.command(
    epilog="Examples:  muster audit suite --json suite/audit.json  ·  muster audit suite --only sort-lines-0003 "
    "--exploit git-hooks"
)
def audit(
    directory: Annotated[Path, typer.Argument(help="Directory of task directories.")],
    only: Annotated[list[str] | None, typer.Option("--only", help="Audit this task alone. Repeatable.")] = None,
    exploit: Annotated[list[str] | None, typer.Option("--exploit", help="Try this one alone. Repeatable.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Verifications of a state that must agree.")] = 3,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Record to write; what it holds and has not changed is not redone.")
    ] = None,
    config: ConfigOption = None,
    overrides: SetOption = None,
) -> None:
    """Prove each task's verifier: the solution passes, idling fails, exploits earn nothing; exit 1 if one is not."""
    from muster.app import auditing
    from muster.config import load

    options = auditing.AuditOptions(
        only=tuple(only or ()), exploits=tuple(exploit or ()), repeats=repeats, record=json_file
    )
    if not auditing.audit(directory, options, config=load(config, overrides or ()), console=out):
        raise typer.Exit(1)


@app.command(
    epilog="Examples:  muster sim --seeds 2000 --check  ·  muster sim --first 1234 --seeds 1  ·  "
    "muster sim --break staleness"
)
def sim(
    seeds: Annotated[int, typer.Option(min=1, help="Worlds to live.")] = 200,
    first: Annotated[int, typer.Option(min=0, help="Seed of the first.")] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one for each core.")] = 0,
    faults: Annotated[list[str] | None, typer.Option(help="Only these faults, or none. Repeatable.")] = None,
    broken: Annotated[
        str | None, typer.Option("--break", help="Break this law on purpose; it must be noticed.")
    ] = None,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Live seeded worlds full of faults with the real orchestrator; no law of a run may break in any."""
    from muster.lab.world import simulate

    chosen = simulate.options(seeds=seeds, first=first, jobs=jobs, faults=faults or (), broken=broken)
    result = simulate.run_simulation(chosen, lambda line: out.print(line, markup=False, soft_wrap=True))
    out.print(result.table())
    conclude(result, json_file, check=check)


@app.command(
    epilog="Examples:  muster plan runs/a  ·  muster plan runs/a --what sandbox.slots=128  ·  "
    "muster plan runs/a --against runs/b"
)
def plan(
    run_dir: Annotated[Path | None, typer.Argument(help="A run to plan from.", metavar="RUN")] = None,
    workload: Annotated[Path | None, typer.Option("--workload", help="A declared world (TOML) instead.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="A preset or file instead of a fit.")] = None,
    what: Annotated[
        list[str] | None, typer.Option("--what", help="Try this change alone: key=value. Repeatable.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Predict the TTB of one changed configuration. Repeatable.")
    ] = None,
    against: Annotated[Path | None, typer.Option("--against", help="Predict this run from its configuration.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Draws of the run's work for each change.")] = 5,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one for each core.")] = 0,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Simulate a run's own work under one change at a time; recommend the one that pays most, or none."""
    from muster.lab.plan.plan import PlanOptions
    from muster.lab.plan.plan import plan as make_plan

    options = PlanOptions(
        run=run_dir,
        workload=workload,
        engine=engine,
        what=tuple(what or ()),
        settings=tuple(settings or ()),
        against=against,
        seeds=seeds,
        jobs=jobs,
    )
    result = make_plan(options, lambda line: out.print(line, markup=False, soft_wrap=True))
    out.print(result.table(), soft_wrap=True)
    conclude(result, json_file, check=check)


@app.command(epilog="Example:  muster doctor")
def doctor() -> None:
    """Check this machine: namespaces, cgroups, bubblewrap, torch, disk; say what to install."""
    from muster.app.doctor import examine

    if not examine(out):
        raise typer.Exit(1)
