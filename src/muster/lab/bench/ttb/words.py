"""Tables of `muster bench ttb`: the arms in three of them, since no terminal is as wide as one.

    rows ─► time and bound │ seconds by cause │ waste and selection ─► targets, one a line

Law: words and columns alone; every figure is a row's own.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.lab.bench.ttb.virtual import CAUSES
from muster.lab.result import BenchResult, Value

_WIDEST = 400


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    key: str
    text: Callable[[Value], str]


def _number(value: Value) -> str:
    return f"{value:,.0f}" if isinstance(value, int | float) else value


def _share(value: Value) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) else value


def _ratio(value: Value) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else value


_TIME = (
    _Column("TTB\np50 s", "ttb_p50_s", _number),
    _Column("TTB\np90 s", "ttb_p90_s", _number),
    _Column("less than\nbaseline", "cut", _share),
    _Column("T over\nbound", "score", _ratio),
    _Column("\nbound", "bound", str),
    _Column("engines wait for\nenvironments", "env_wait", _share),
    _Column("cache\nhits", "hit_rate", _share),
    _Column("prefill\nover needed", "prefill_ratio", _ratio),
)
_CAUSES = tuple(_Column(name.replace("_", "\n"), f"{name}_s", _number) for name in CAUSES)
_WASTE = (
    _Column("tokens in\nno batch", "wasted_tokens", _share),
    _Column("slot seconds\nwasted", "wasted_slot_s", _number),
    _Column("\npreemptions", "preemptions", _number),
    _Column("\nrefills", "refills", _number),
    _Column("mean length over\nthat dispatched", "length_ratio", _ratio),
    _Column("p90\nlength", "p90_ratio", _ratio),
    _Column("longest tenth\nincluded", "longest_tenth", _share),
)
_GRID = (
    _Column("baseline\ns", "baseline_s", _number),
    _Column("Muster\ns", "ours_s", _number),
    _Column("\nless", "cut", _share),
    _Column("baseline\nover bound", "baseline_score", _ratio),
    _Column("Muster\nover bound", "score", _ratio),
    _Column("\nbound", "bound", str),
    _Column("baseline\nhits", "baseline_hit_rate", _share),
    _Column("Muster\nhits", "hit_rate", _share),
    _Column("length\nratio", "length_ratio", _ratio),
)


def render(result: BenchResult, console: Console) -> None:
    """The three tables of the arms, and the targets."""
    _print(console, _table("Time to the batch", ("fleet", "arm"), _TIME, result.rows))
    _print(console, _table("Seconds of the TTB by cause", ("fleet", "arm"), _CAUSES, result.rows))
    _print(console, _table("What was wasted, and who was selected", ("fleet", "arm"), _WASTE, result.rows))
    for target in result.targets:
        console.print(Text(str(target), style="" if target.met else "bold red"), soft_wrap=True)


def render_grid(result: BenchResult, console: Console) -> None:
    _print(console, _table("Where the gain holds", ("axis", "cell"), _GRID, result.rows))


def _print(console: Console, table: Table) -> None:
    """As wide as it is: a figure that is cut short to fit a terminal says nothing."""
    wide = Console(width=_WIDEST, file=io.StringIO())
    with wide.capture() as capture:
        wide.print(table)
    for line in capture.get().splitlines():
        console.print(Text(line.rstrip()), soft_wrap=True)


def _table(title: str, names: Sequence[str], columns: Sequence[_Column], rows: Sequence[Mapping[str, Value]]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    for name in names:
        table.add_column(name, no_wrap=True)
    for column in columns:
        table.add_column(column.title, justify="right")
    before = None
    for row in rows:
        group = row.get("kind", row[names[0]])
        if before is not None and group != before:
            table.add_section()
        before = group
        table.add_row(*(str(row[name]) for name in names), *(column.text(row[column.key]) for column in columns))
    return table
