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
engine_app = typer.Typer(no_args_is_help=True, help="Emulate a server, and fit the emulation to a live one.")
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


@app.command(epilog="Examples:  muster replay g000012.3  ·  muster replay g000012.3 --run runs/a --json replay.json")
def replay(
    trajectory: Annotated[str, typer.Argument(help="Its id, as the report shows it.")],
    run_dir: Annotated[Path | None, typer.Option("--run", help="Default: the newest below runs/.")] = None,
    json_file: JsonOption = None,
) -> None:
    """Play a recorded trajectory again and compare every observation; exit 1 if it diverges."""
    from muster import replaying

    if not replaying.replay(trajectory, run_dir, console=out, json_file=json_file):
        raise typer.Exit(1)


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
    from muster import auditing
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
    from muster.bench import simulate

    chosen = simulate.options(seeds=seeds, first=first, jobs=jobs, faults=faults or (), broken=broken)
    result = simulate.run_simulation(chosen, lambda line: out.print(line, markup=False, soft_wrap=True))
    out.print(result.table())
    if json_file:
        json_file.write_text(result.to_json(), encoding="utf-8")
    if check and not result.met:
        raise typer.Exit(1)


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
    from muster.bench.plan import PlanOptions
    from muster.bench.plan import plan as make_plan

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
    if json_file:
        json_file.write_text(result.to_json(), encoding="utf-8")
    if check and not result.met:
        raise typer.Exit(1)


@app.command(epilog="Example:  muster doctor")
def doctor() -> None:
    """Check this machine: namespaces, cgroups, bubblewrap, torch, disk; say what to install."""
    from muster.doctor import examine

    if not examine(out):
        raise typer.Exit(1)


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
    from muster.tasks.suites.write import generate

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


@bench_app.command("sandbox", epilog="Example:  muster bench sandbox --repeats 20 --forks 1000 --check")
def bench_sandbox(
    repeats: Annotated[int, typer.Option(min=1, help="Lives of a sandbox on every side.")] = 20,
    forks: Annotated[int, typer.Option(min=0, help="Opened and closed to look for leaks; 0: none.")] = 1000,
    backend: Annotated[list[str] | None, typer.Option(help="namespace, docker or podman. Repeatable.")] = None,
    docker_host: Annotated[str | None, typer.Option(help="Use this Docker daemon; default: a private one.")] = None,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Starts, commands, snapshots and leaks of the backends, beside plain Docker and Podman."""
    from muster.bench.sandbox import BACKENDS, run_sandbox_bench

    result = run_sandbox_bench(
        repeats=repeats, forks=forks, backends=backend or BACKENDS, docker_host=docker_host, say=out.print
    )
    out.print(result.table())
    if json_file:
        json_file.write_text(result.to_json(), encoding="utf-8")
    if check and not result.met:
        raise typer.Exit(1)


@bench_app.command("control", epilog="Examples:  muster bench control --check  ·  muster bench control --live 100")
def bench_control(
    live: Annotated[list[int] | None, typer.Option(min=8, help="Live trajectories. Repeatable.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same worlds.")] = 0,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """CPU time of the control plane a turn, by part, with 100 to 10,000 live trajectories on one core."""
    from muster.bench.control import LIVE, run_control_bench

    result = run_control_bench(out.print, live=live or LIVE, seed=seed)
    out.print(result.table(), soft_wrap=True)
    if json_file:
        json_file.write_text(result.to_json(), encoding="utf-8")
    if check and not result.met:
        raise typer.Exit(1)


@bench_app.command("lag", epilog="Example:  muster bench lag --check")
def bench_lag(
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same worlds.")] = 0,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """How old trained tokens are: what a closed form predicts, beside the simulated scheduler and loops."""
    from muster.bench.lag import run_lag_bench

    result = run_lag_bench(out.print, seed=seed)
    out.print(result.table(), soft_wrap=True)
    if json_file:
        json_file.write_text(result.to_json(), encoding="utf-8")
    if check and not result.met:
        raise typer.Exit(1)


@bench_app.command("selection", epilog="Example:  muster bench selection --repetitions 4 --check")
def bench_selection(
    repetitions: Annotated[int, typer.Option(min=1, help="Seeds, of which the mean is shown.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Which lengths four batch policies train, and whether the bias ledger says so."""
    from muster.bench.selection import run_selection_bench

    result = run_selection_bench(out.print, repetitions=repetitions, seed=seed)
    out.print(result.table(), soft_wrap=True)
    if json_file:
        json_file.write_text(result.to_json(), encoding="utf-8")
    if check and not result.met:
        raise typer.Exit(1)


@bench_app.command("routing", epilog="Example:  muster bench routing --repetitions 3 --check")
def bench_routing(
    repetitions: Annotated[int, typer.Option(min=1, help="Seeds, of which the median is shown.")] = 1,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one on each core.")] = 0,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Where turns go: hit rate and time to a batch of four routing policies, on the same work."""
    from muster.bench.routing import run_routing_bench

    result = run_routing_bench(repetitions=repetitions, jobs=jobs, say=out.print)
    out.print(result.table(), soft_wrap=True)
    if json_file:
        json_file.write_text(result.to_json(), encoding="utf-8")
    if check and not result.met:
        raise typer.Exit(1)


@bench_app.command(
    "ttb",
    epilog="Examples:  muster bench ttb --repetitions 5 --plot ttb.png --check  ·  muster bench ttb --grid  ·  "
    "muster bench ttb --real",
)
def bench_ttb(
    virtual: Annotated[bool, typer.Option("--virtual", help="Simulated, in minutes; the default.")] = False,
    real: Annotated[bool, typer.Option("--real", help="Real sandboxes, in wall time, beside its prediction.")] = False,
    grid: Annotated[bool, typer.Option("--grid", help="One thing changed at a time: where the gain holds.")] = False,
    repetitions: Annotated[int | None, typer.Option(min=1, help="Batches of each arm; medians count.")] = None,
    declaration: Annotated[Path | None, typer.Option(help="Your own copy of bench/ttb.toml.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the arms of --virtual into this file.")] = None,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Time to one batch of 256 trajectories: what is common, and each part of Muster switched on."""
    from muster.bench import ttb_command

    result = ttb_command.run(
        console=out, virtual=virtual, real=real, grid=grid, repetitions=repetitions, declaration=declaration, plot=plot
    )
    if json_file:
        json_file.write_text(result.to_json(), encoding="utf-8")
    if check and not result.met:
        raise typer.Exit(1)


@engine_app.command(
    "emulate",
    epilog="Examples:  muster engine emulate --preset h100-llama-8b --port 8000  ·  "
    "muster engine emulate --preset mine.toml",
)
def engine_emulate(
    preset: Annotated[str, typer.Option(help="A built-in preset, or a file as calibrate writes it.")] = "h100-llama-8b",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Beyond loopback a token in MUSTER_ENGINE_TOKEN is needed.")] = "127.0.0.1",
    name: Annotated[str, typer.Option(help="The replica's and the model's name.")] = "emulated",
) -> None:
    """Serve a timing model of an inference server over HTTP, in wall time, until interrupted."""
    from muster.engine.emulated.presets import preset as read_preset
    from muster.engine.emulated.serve import emulate

    emulate(read_preset(preset), name=name, host=host, port=port, say=lambda url: out.print(f"{name} at {url}"))


@engine_app.command(
    "calibrate", epilog="Example:  muster engine calibrate http://127.0.0.1:8000 --longest 8192 --output mine.toml"
)
def engine_calibrate(
    url: Annotated[str, typer.Argument(help="An idle server. Its token, if any, in MUSTER_ENGINE_TOKEN.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the preset here; default: print.")
    ] = None,
    longest: Annotated[int, typer.Option(min=64, help="Tokens of the longest prompt to try.")] = 4096,
    step_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step: its chunked prefill.")] = 2048,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each shape; the median counts.")] = 3,
) -> None:
    """Time a few requests of chosen shapes on a live server and fit the timing model to them."""
    from muster.engine.emulated.serve import calibrate_url

    fitted = calibrate_url(url, longest=longest, step_tokens=step_tokens, repeats=repeats, say=out.print)
    if output:
        output.write_text(fitted, encoding="utf-8")
    else:
        out.print(fitted, markup=False, soft_wrap=True)


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
