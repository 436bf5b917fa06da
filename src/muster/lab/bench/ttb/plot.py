"""The figure of `muster bench ttb`: a bar for each arm, made of the causes of its TTB, with its lower bound.

Law: the only module of the benchmark that needs matplotlib (extra `train`); nothing imports it until a figure is asked
for. A stage has the colour that it has everywhere.
"""
# matplotlib leaves most of what it offers without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from muster.lab.bench.ttb.virtual import CAUSES
from muster.lab.result import BenchResult, Value
from muster.observe.palette import STAGE_COLOURS

_COLOURS = {name: STAGE_COLOURS[stages[0]] for name, stages in CAUSES.items()}
_ROW_IN = 0.34
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def write_figure(result: BenchResult, path: Path) -> None:
    """Write a PNG, SVG or PDF, by the ending of `path`."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 1.6 + _ROW_IN * len(result.rows)), dpi=150, layout="constrained")
        axes = figure.add_subplot()
        _bars(axes, result.rows)
        figure.legend(loc="outside lower center", ncols=6, frameon=False)
        axes.set_title("Seconds to one batch, by cause", loc="left", fontweight="bold")
        figure.savefig(path)


def _bars(axes: Axes, rows: Sequence[Mapping[str, Value]]) -> None:
    positions = _positions(rows)
    for name in CAUSES:
        widths = [_scaled(row, name) for row in rows]
        lefts = [sum(_scaled(row, other) for other in _before(name)) for row in rows]
        if any(widths):
            axes.barh(positions, widths, left=lefts, height=0.7, color=_COLOURS[name], label=name.replace("_", " "))
    bounds = [float(row["ttb_p50_s"]) / float(row["score"]) for row in rows]
    axes.plot(
        bounds, positions, linestyle="", marker="|", markersize=14, markeredgewidth=2, color="black", label="bound"
    )
    for position, row in zip(positions, rows, strict=True):
        words = f" {float(row['cut']):.0%} less" if float(row["cut"]) else ""
        axes.text(float(row["ttb_p50_s"]), position, words, va="center", fontsize=8)
    axes.set_yticks(positions, [f"{row['fleet']}: {row['arm']}" for row in rows])
    axes.set_ylim(max(positions) + 0.7, -0.7)
    axes.margins(x=0.1)


def _positions(rows: Sequence[Mapping[str, Value]]) -> list[float]:
    """One below the other, with a gap between the kinds."""
    positions: list[float] = []
    for index, row in enumerate(rows):
        gap = 0.6 if index and row["kind"] != rows[index - 1]["kind"] else 0.0
        positions.append(positions[-1] + 1 + gap if positions else 0.0)
    return positions


def _scaled(row: Mapping[str, Value], name: str) -> float:
    """Medians of parts need not sum to the median of the whole: a bar is as long as its TTB."""
    whole = sum(float(row[f"{other}_s"]) for other in CAUSES)
    return float(row[f"{name}_s"]) * float(row["ttb_p50_s"]) / whole if whole else 0.0


def _before(name: str) -> list[str]:
    names = list(CAUSES)
    return names[: names.index(name)]
