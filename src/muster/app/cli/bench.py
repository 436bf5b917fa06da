"""Benchmarks: both sides of a claim in one run. Law: as the package's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.app.cli.shared import CheckOption, JsonOption, bench_app, conclude, out

PythonOption = Annotated[str, typer.Option(help="With --engine vllm: the interpreter that has it; default: this one.")]


@bench_app.command("engine", epilog="Example:  muster bench engine --streams 1 --streams 32 --check")
def bench_engine(
    model: Annotated[str, typer.Option(help="As in the configuration.")] = "starter",
    streams: Annotated[list[int] | None, typer.Option(help="Concurrent requests. Repeatable.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each; the median counts.")] = 3,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Tokens per second beside Hugging Face generate, and log-probabilities beside its forward pass."""
    from muster.lab.bench.engine import run_engine_bench

    result = run_engine_bench(model=model, streams=streams or (1, 16, 32, 64), repeats=repeats)
    out.print(result.table())
    conclude(result, json_file, check=check)


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
    from muster.lab.bench.sandbox.sandbox import BACKENDS, run_sandbox_bench

    result = run_sandbox_bench(
        repeats=repeats, forks=forks, backends=backend or BACKENDS, docker_host=docker_host, say=out.print
    )
    out.print(result.table())
    conclude(result, json_file, check=check)


@bench_app.command("control", epilog="Examples:  muster bench control --check  ·  muster bench control --live 100")
def bench_control(
    live: Annotated[list[int] | None, typer.Option(min=8, help="Live trajectories. Repeatable.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same worlds.")] = 0,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """CPU time of the control plane a turn, by part, with 100 to 10,000 live trajectories on one core."""
    from muster.lab.bench.control.control import LIVE, run_control_bench

    result = run_control_bench(out.print, live=live or LIVE, seed=seed)
    out.print(result.table(), soft_wrap=True)
    conclude(result, json_file, check=check)


@bench_app.command("lag", epilog="Example:  muster bench lag --check")
def bench_lag(
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same worlds.")] = 0,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Age of trained tokens: what a closed form predicts, beside the simulated scheduler and loops."""
    from muster.lab.bench.lag import run_lag_bench

    result = run_lag_bench(out.print, seed=seed)
    out.print(result.table(), soft_wrap=True)
    conclude(result, json_file, check=check)


@bench_app.command("selection", epilog="Example:  muster bench selection --repetitions 4 --check")
def bench_selection(
    repetitions: Annotated[int, typer.Option(min=1, help="Seeds, of which the mean is shown.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 0,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Lengths that four batch policies train, and whether the bias ledger says so."""
    from muster.lab.bench.selection import run_selection_bench

    result = run_selection_bench(out.print, repetitions=repetitions, seed=seed)
    out.print(result.table(), soft_wrap=True)
    conclude(result, json_file, check=check)


@bench_app.command(
    "routing",
    epilog="Examples:  muster bench routing --repetitions 3 --check  ·  muster bench routing --real --engine vllm",
)
def bench_routing(
    repetitions: Annotated[int, typer.Option(min=1, help="Seeds, of which the median is shown.")] = 1,
    jobs: Annotated[int, typer.Option(min=0, help="Processes; 0: one on each core.")] = 0,
    real: Annotated[bool, typer.Option("--real", help="Two real servers on this machine, in wall time.")] = False,
    engine: Annotated[str, typer.Option(help="With --real: embedded or vllm.")] = "embedded",
    python: PythonOption = "",
    model: Annotated[str, typer.Option(help="With --real: as in the configuration.")] = "starter",
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Routing of turns: hit rate and time to a batch of four routing policies, on the same work."""
    from muster.lab.bench.routing.real import engine_of, run_real_routing_bench
    from muster.lab.bench.routing.virtual import run_routing_bench

    if real:
        servers = engine_of(engine, python=python)
        result = run_real_routing_bench(out.print, model=model, engine=servers, repetitions=repetitions)
    else:
        result = run_routing_bench(repetitions=repetitions, jobs=jobs, say=out.print)
    out.print(result.table(), soft_wrap=True)
    conclude(result, json_file, check=check)


@bench_app.command(
    "publish",
    epilog="Examples:  muster bench publish --check  ·  muster bench publish --arm direct-delta --repeats 5",
)
def bench_publish(
    model: Annotated[str, typer.Option(help="As in the configuration.")] = "starter",
    engine: Annotated[str, typer.Option(help="What is published to: embedded or vllm.")] = "embedded",
    python: PythonOption = "",
    arm: Annotated[list[str] | None, typer.Option(help="Such as checkpoint-delta; default: all. Repeatable.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Publications of each arm; the median counts.")] = 3,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """New weights by three transports, whole, delta and adapter: latency, pause, bytes, and what decoding loses."""
    from muster.lab.bench.publish.publish import ARMS, engine_of, run_publish_bench

    server = engine_of(engine, python=python)
    result = run_publish_bench(out.print, model=model, engine=server, repeats=repeats, only=arm or ARMS)
    out.print(result.table(), soft_wrap=True)
    conclude(result, json_file, check=check)


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
    declaration: Annotated[Path | None, typer.Option(help="Your own copy of ttb.toml.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the arms of --virtual into this file.")] = None,
    json_file: JsonOption = None,
    check: CheckOption = False,
) -> None:
    """Time to one batch of 256 trajectories: what is common, and each part of Muster switched on."""
    from muster.lab.bench.ttb import command

    result = command.run(
        console=out, virtual=virtual, real=real, grid=grid, repetitions=repetitions, declaration=declaration, plot=plot
    )
    conclude(result, json_file, check=check)
