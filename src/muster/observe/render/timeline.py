"""The figures as PNG files: learning, TTB by cause, and the state of every device over time.

Law: the only module of this package that needs matplotlib (extra `train`); nothing imports it until a figure is
asked for. It draws without pyplot, so no display is touched. Colours are those of `palette`, everywhere.
"""
# matplotlib leaves most of what it offers without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from muster.observe.palette import STAGE_COLOURS, STATE_COLOURS, STATE_NAMES, name
from muster.observe.render import figures
from muster.observe.report import Report

DPI = 120
WIDTH_IN = 10.0  # 1200 pixels

STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


def write_figures(report: Report, directory: Path) -> list[Path]:
    """Write `learning.png`, `causes.png` and `devices.png`; a figure without data is left out. Returns the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with mpl.rc_context(STYLE):
        for key, draw in _DRAWINGS.items():
            figure = draw(report)
            if figure is not None:
                path = directory / f"{key}.png"
                figure.savefig(path, dpi=DPI)
                written.append(path)
    return written


def _learning(report: Report) -> Figure | None:
    data = figures.learning(report)
    if not data.rewards and not data.evaluations:
        return None
    figure = Figure(figsize=(WIDTH_IN, 4.0))
    axes = figure.subplots()
    if data.rewards:
        steps, rewards = zip(*data.rewards, strict=True)
        axes.plot(steps, rewards, color="#0072b2", linewidth=2, label="mean reward of the batch (training tasks)")
    if data.evaluations:
        rates = [e.pass_rate for e in data.evaluations]
        below = [e.pass_rate - e.low for e in data.evaluations]
        above = [e.high - e.pass_rate for e in data.evaluations]
        axes.errorbar(
            [e.step for e in data.evaluations],
            rates,
            yerr=[below, above],
            fmt="o",
            color="#1d2127",
            capsize=4,
            label="pass rate, held-out tasks (95 % interval)",
        )
    axes.set(title=f"{report.name}: learning", xlabel="step", ylabel="rate")
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#e1e4e8")
    axes.set_axisbelow(True)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _causes(report: Report) -> Figure | None:
    data = figures.causes(report)
    if not data.steps:
        return None
    figure = Figure(figsize=(WIDTH_IN, 4.5))
    axes = figure.subplots()
    base = [0.0] * len(data.steps)
    for stage, seconds in data.seconds.items():
        axes.bar(data.steps, seconds, bottom=base, color=STAGE_COLOURS[stage], label=name(stage), width=0.8)
        base = [b + s for b, s in zip(base, seconds, strict=True)]
    axes.set(title=f"{report.name}: time to trainable batch, by cause", xlabel="batch (step)", ylabel="TTB, seconds")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, axes)
    return figure


def _devices(report: Report) -> Figure | None:
    data = figures.devices(report)
    if not data.strips or data.duration_s <= 0:
        return None
    factor, unit = (1.0, "seconds") if data.duration_s < 600 else (60.0, "minutes")
    figure = Figure(figsize=(WIDTH_IN, 1.6 + 0.45 * len(data.strips)))
    axes = figure.subplots()
    for row, strip in enumerate(data.strips.values()):
        axes.broken_barh(
            [(p.start / factor, p.duration_s / factor) for p in strip],
            (row - 0.4, 0.8),
            facecolors=[STATE_COLOURS[p.label] for p in strip],
            linewidth=0,
        )
    axes.set(title=f"{report.name}: devices", xlabel=f"{unit} since the start")
    axes.set_xlim(0, data.duration_s / factor)
    axes.set_yticks(range(len(data.strips)), labels=list(data.strips))
    axes.invert_yaxis()
    handles = [Patch(color=STATE_COLOURS[s], label=STATE_NAMES[s]) for s in data.states]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=10)
    return figure


def _legend(figure: Figure, axes: Axes) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=10)


_DRAWINGS: dict[str, Callable[[Report], Figure | None]] = {
    "learning": _learning,
    "causes": _causes,
    "devices": _devices,
}
