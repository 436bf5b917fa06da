"""Boxes and columns of styled text, cheap enough to be drawn all the time.

Law: every line that comes out has exactly the asked width; what does not fit is cut with an ellipsis.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import zip_longest

from rich.text import Text

Cell = str | Text


def box(title: str, lines: Sequence[Text], width: int) -> list[Text]:
    """`lines` in a frame with its title in the upper edge."""
    head = f"╭─ {title} "
    framed = [Text(head + "─" * (width - len(head) - 1) + "╮", "dim")]
    for line in lines:
        inner = line.copy()
        inner.truncate(width - 4, overflow="ellipsis", pad=True)
        framed.append(Text.assemble(("│ ", "dim"), inner, (" │", "dim")))
    return [*framed, Text("╰" + "─" * (width - 2) + "╯", "dim")]


def beside(left: Sequence[Text], right: Sequence[Text], width: int) -> list[Text]:
    """Two blocks, the left one `width` wide; the shorter one is filled with blank lines."""
    blank = Text(" " * width)
    return [Text.assemble(a or blank, b or "") for a, b in zip_longest(left, right)]


def columns(rows: Sequence[Sequence[Cell]], *, right: Collection[int] = ()) -> list[Text]:
    """Cells under each other, one space apart; the columns in `right` end together, the rest begin together."""
    cells = [[c if isinstance(c, Text) else Text(c) for c in row] for row in rows]
    widths = [max(c.cell_len for c in column) for column in zip(*cells, strict=True)]
    lines: list[Text] = []
    for row in cells:
        line = Text()
        for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
            pad = " " * (width - cell.cell_len)
            line.append(pad if i in right else "").append_text(cell)
            line.append(" " if i in right else pad + " ")
        lines.append(line)
    return lines
