"""The report on a terminal: the sections as rich tables, and several runs side by side.

Law: layout only; the words come from `sections`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from muster.observe import words
from muster.observe.report import Report
from muster.observe.sections.questions import closing, headline, sections
from muster.observe.sections.section import Section, Table
from muster.types import DeviceState

BAR_WIDTH = 24


def render_text(report: Report, console: Console) -> None:
    """Print the whole report."""
    console.print(Text.assemble((report.name, "bold"), "  ", headline(report)))
    for section in sections(report):
        console.print(_section(section))
    console.print(_section(closing(report)))


def compare(reports: Sequence[Report]) -> RenderableType:
    """Runs side by side; ratios are to the first. Times of different machines do not compare."""
    assert reports, "nothing to compare"
    table = RichTable(box=None, pad_edge=False, header_style="bold")
    table.add_column("measure")
    for report in reports:
        table.add_column(report.name, justify="right")
    for _ in reports[1:]:
        table.add_column("ratio", justify="right", style="bold")
    for label, value, write in _MEASURES:
        values = [value(r) for r in reports]
        ratios = [words.ratio(v / values[0] if v is not None and values[0] else None) for v in values[1:]]
        table.add_row(label, *(write(v) for v in values), *ratios)
    return Group(*(Text(f"{r.name}: {headline(r)}") for r in reports), "", table)


def _section(section: Section) -> RenderableType:
    parts: list[RenderableType] = ["", Text(section.title, style="bold underline"), Text(section.sentence)]
    for table in section.tables:
        parts.append(Padding(Group(Text(table.title, style="italic"), _table(table)), (1, 0, 0, 2)))
    return Group(*parts)


def _table(table: Table) -> RenderableType:
    if table.columns == ("alarm",):
        return Group(*(Text(f"! {row[0]}", style="bold red") for row in table.rows))
    rich = RichTable(box=None, pad_edge=False, header_style="dim")
    for i, column in enumerate(table.columns):
        justify = "left" if i == 0 or not _numeric(table, i) else "right"
        rich.add_column(column, justify=justify, overflow="fold")  # an id is of use only when it is whole
    if table.shares:
        rich.add_column("")
    for i, row in enumerate(table.rows):
        bar = [Text("█" * round(BAR_WIDTH * table.shares[i]) or "▏", style=table.colours[i])] if table.shares else []
        rich.add_row(*(Text(cell) for cell in row), *bar)
    return rich


def _numeric(table: Table, column: int) -> bool:
    """Whether the column reads as numbers: most cells begin with a digit, a sign or are missing."""
    cells = [row[column] for row in table.rows if row[column]]
    starts = sum(cell[0].isdigit() or cell[0] in "+-<–" for cell in cells)
    return 2 * starts > len(cells)


# --- comparison ---------------------------------------------------------------------------------------

Measure = tuple[str, Callable[[Report], float | None], Callable[[float | None], str]]


def _ttb(q: float) -> Callable[[Report], float | None]:
    return lambda r: words.quantile([b.ttb_s for b in r.batches], q)


def _trainer_wait(report: Report) -> float | None:
    return report.trainer_wait_s / len(report.batches) if report.batches else None


def _reward(index: int) -> Callable[[Report], float | None]:
    def value(report: Report) -> float | None:
        series = report.series.get("reward", ())
        return series[index][1] if series else None

    return value


def _pass_rate(index: int) -> Callable[[Report], float | None]:
    return lambda r: r.evaluations[index].pass_rate if r.evaluations else None


def _engine_share(state: DeviceState) -> Callable[[Report], float | None]:
    return lambda r: r.devices.share(state, *r.devices.engines) if r.devices.engines else None


def _trainer_share(state: DeviceState) -> Callable[[Report], float | None]:
    return lambda r: r.devices.share(state, "trainer") if "trainer" in r.devices.strips else None


_MEASURES: tuple[Measure, ...] = (
    ("wall time", lambda r: r.wall_s, words.seconds),
    ("wall time per step", lambda r: r.wall_s / r.steps if r.steps else None, words.seconds),
    ("TTB p50", _ttb(0.5), words.seconds),
    ("TTB p90", _ttb(0.9), words.seconds),
    ("trainer waited per batch", _trainer_wait, words.seconds),
    ("engines decoding", _engine_share(DeviceState.DECODE), words.percent),
    ("engines waiting for environments", _engine_share(DeviceState.ENV_WAIT), words.percent),
    ("engines waiting for work", _engine_share(DeviceState.NO_WORK), words.percent),
    ("engines paused for weights", _engine_share(DeviceState.PUBLISH_PAUSE), words.percent),
    ("trainer waiting for a batch", _trainer_share(DeviceState.BATCH_WAIT), words.percent),
    ("groups without gradient", lambda r: r.groups.no_gradient_share, words.percent),
    ("lag, largest", lambda r: max((float(f.lag_max) for f in r.freshness), default=None), words.number),
    ("reward, first step", _reward(0), words.number),
    ("reward, last step", _reward(-1), words.number),
    ("evaluation, first", _pass_rate(0), words.percent),
    ("evaluation, last", _pass_rate(-1), words.percent),
)
