"""Table of `muster bench ttb --real`: one column for each arm, a line for each figure, then the targets.

Law: words alone; every figure is a row's own. Seconds are this machine's; `time` of the configuration says how many
declared ones each stands for.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.lab.bench.ttb.virtual import CAUSES
from muster.lab.result import BenchResult, Value


def _seconds(value: Value) -> str:
    return f"{value:.1f}" if isinstance(value, int | float) else value


def _share(value: Value) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) else value


_Lines = tuple[tuple[str, str, Callable[[Value], str]], ...]

_TIME: _Lines = (
    ("TTB, median of the runs, s", "ttb_s", _seconds),
    ("  least", "least_s", _seconds),
    ("  most", "most_s", _seconds),
    ("  predicted before", "predicted_s", _seconds),
    ("  error of the prediction, median", "error", _share),
    ("  error of the prediction, worst", "worst_error", _share),
    ("  in the declared world, s", "declared_s", _seconds),
)
_CAUSES: _Lines = tuple((f"  {name.replace('_', ' ')}, s", f"{name}_s", _seconds) for name in CAUSES)
_MACHINE: _Lines = (
    ("prompt tokens found in a cache", "hit_rate", _share),
    ("  predicted", "predicted_hits", _share),
    ("cores busy", "cpu_share", _share),
    ("one core, by the scheduling process", "control_share", _share),
    ("attempts not as planned", "wrong", str),
)


def render(result: BenchResult, console: Console) -> None:
    """The table and the targets."""
    table = Table(title="One batch, in wall time", title_justify="left", header_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    for row in result.rows:
        table.add_column(str(row["arm"]), justify="right")
    for lines in (_TIME, _CAUSES, _MACHINE):
        for words, key, text in lines:
            table.add_row(words, *(text(row[key]) for row in result.rows))
        table.add_section()
    console.print(table)
    for target in result.targets:
        console.print(Text(str(target), style="" if target.met else "bold red"), soft_wrap=True)
