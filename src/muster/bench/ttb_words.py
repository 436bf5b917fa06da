"""What `muster bench ttb` prints: the arms in three tables, since no terminal is as wide as one.

    rows ─► time and bound │ seconds by cause │ waste and selection ─► targets, one a line

Law: words and columns alone; every figure is a row's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.bench.result import BenchResult, Value
from muster.bench.ttb import CAUSES


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
    _Column("TTB p50 s", "ttb_p50_s", _number),
    _Column("p90 s", "ttb_p90_s", _number),
    _Column("less than baseline", "cut", _share),
    _Column("T / bound", "score", _ratio),
    _Column("bound", "bound", str),
    _Column("engines wait for environments", "env_wait", _share),
    _Column("cache hits", "hit_rate", _share),
    _Column("prefill over needed", "prefill_ratio", _ratio),
)
_CAUSES = tuple(_Column(name.replace("_", " "), f"{name}_s", _number) for name in CAUSES)
_WASTE = (
    _Column("tokens in no batch", "wasted_tokens", _share),
    _Column("slot s wasted a batch", "wasted_slot_s", _number),
    _Column("preemptions", "preemptions", _number),
    _Column("refills", "refills", _number),
    _Column("mean length of batch / dispatched", "length_ratio", _ratio),
    _Column("p90 length", "p90_ratio", _ratio),
    _Column("longest tenth included", "longest_tenth", _share),
)
_GRID = (
    _Column("baseline s", "baseline_s", _number),
    _Column("Muster s", "ours_s", _number),
    _Column("less", "cut", _share),
    _Column("baseline T / bound", "baseline_score", _ratio),
    _Column("T / bound", "score", _ratio),
    _Column("bound", "bound", str),
    _Column("baseline hits", "baseline_hit_rate", _share),
    _Column("hits", "hit_rate", _share),
    _Column("length ratio", "length_ratio", _ratio),
)


def render(result: BenchResult, console: Console) -> None:
    """The three tables of the arms, and the targets."""
    console.print(_table("Time to the batch", ("fleet", "arm"), _TIME, result.rows))
    console.print(_table("Seconds of the TTB by cause", ("fleet", "arm"), _CAUSES, result.rows))
    console.print(_table("What was wasted, and who was selected", ("fleet", "arm"), _WASTE, result.rows))
    for target in result.targets:
        console.print(Text(str(target), style="" if target.met else "bold red"), soft_wrap=True)


def render_grid(result: BenchResult, console: Console) -> None:
    console.print(_table("Where the gain holds", ("axis", "cell"), _GRID, result.rows))


def _table(title: str, names: Sequence[str], columns: Sequence[_Column], rows: Sequence[Mapping[str, Value]]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", pad_edge=False)
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
