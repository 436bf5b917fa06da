"""A section of a report, before any medium: a title, one sentence, and tables of text."""

from __future__ import annotations

from dataclasses import dataclass

LAST_BATCHES = 12
"""Tables with a row for each batch show the last of them; the JSON has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`rows` are text. `shares` (0 to 1) and `colours`, one per row, draw a bar where the medium can."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...] = ()
    colours: tuple[str, ...] = ()
    figure: str = ""  # name of the chart that shows the same; a page draws it above


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    title: str
    sentence: str
    tables: tuple[Table, ...] = ()
