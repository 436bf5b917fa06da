"""`muster bench ttb` as the command line calls it: which mode, what it prints and writes.

--virtual (default) ─► ttb      --grid ─► ttb_grid      --real ─► ttb_real
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from muster import extras
from muster.errors import ConfigError
from muster.lab.bench.ttb import words
from muster.lab.bench.ttb.declaration import BUILT_IN, read
from muster.lab.bench.ttb.grid import run_grid
from muster.lab.bench.ttb.real import table
from muster.lab.bench.ttb.real.real import read_config, run_real
from muster.lab.bench.ttb.virtual import run_ttb
from muster.lab.result import BenchResult

REPETITIONS = 3
GRID_REPETITIONS = 1


def run(
    *,
    console: Console,
    virtual: bool = False,
    real: bool = False,
    grid: bool = False,
    repetitions: int | None = None,
    declaration: Path | None = None,
    plot: Path | None = None,
) -> BenchResult:
    """Run one mode and print its tables. Raises `ConfigError` for options or a declaration that cannot be."""
    if virtual + real + grid > 1:
        raise ConfigError("--virtual, --real and --grid exclude each other; choose one")
    if plot and (real or grid):
        raise ConfigError("--plot draws the arms of --virtual; leave --real and --grid out")
    if plot and find_spec("matplotlib") is None:
        raise ConfigError(f"--plot needs matplotlib: {extras.install('train')}")
    file = declaration or BUILT_IN

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True, style="dim")

    if real:
        return _real(file, repetitions, console)
    if grid:
        result = run_grid(repetitions=repetitions or GRID_REPETITIONS, declaration=file, say=say)
        words.render_grid(result, console)
        return result
    result = run_ttb(repetitions=repetitions or REPETITIONS, declaration=file, say=say)
    words.render(result, console)
    if plot:
        from muster.lab.bench.ttb.plot import write_figure

        write_figure(result, plot)
        console.print(f"figure: {plot}")
    return result


def _real(file: Path, repetitions: int | None, console: Console) -> BenchResult:
    config = read_config()
    if repetitions:
        config = config.model_copy(update={"runs": repetitions})
    result = run_real(read(file), config, say=lambda line: console.print(line, markup=False, soft_wrap=True))
    table.render(result, console)
    return result
