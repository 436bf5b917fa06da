"""Data of the figures, before any medium: `charts` draws it as SVG for the page, `timeline` as PNG.

learning   reward of each step; pass rate of each evaluation with its interval
causes     seconds by cause, a bar for each batch
devices    the state of each device over the time of the run
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.observe.intervals import Labelled
from muster.observe.report import Report
from muster.types import DeviceState, Evaluation, Stage

BARS = 60  # batches in one figure; the last ones
CELLS = 900  # resolution of a device strip: finer than a screen shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    rewards: tuple[tuple[int, float], ...]  # (step, mean reward of its batch)
    evaluations: tuple[Evaluation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """`seconds[stage][i]` belongs to batch `steps[i]`; stages that never occur are left out."""

    steps: tuple[int, ...]
    seconds: Mapping[Stage, tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Pieces in seconds since `start`, the beginning of the first session; `states` that occur, in their order."""

    start: float
    duration_s: float
    strips: Mapping[str, tuple[Labelled[DeviceState], ...]]
    states: tuple[DeviceState, ...]


def learning(report: Report) -> Learning:
    return Learning(rewards=report.series.get("reward", ()), evaluations=report.evaluations)


def causes(report: Report) -> Causes:
    batches = report.batches[-BARS:]
    parts = [b.parts for b in batches]
    seconds = {stage: tuple(p.get(stage, 0.0) for p in parts) for stage in Stage}
    return Causes(steps=tuple(b.step for b in batches), seconds={s: row for s, row in seconds.items() if any(row)})


def devices(report: Report) -> Devices:
    sessions = report.sessions
    start = sessions[0].start if sessions else 0.0
    duration_s = sessions[-1].end - start if sessions else 0.0
    strips = {d: coarse(strip, start, duration_s / CELLS) for d, strip in report.devices.strips.items()}
    present = {p.label for strip in strips.values() for p in strip}
    return Devices(
        start=start,
        duration_s=duration_s,
        strips=strips,
        states=tuple(s for s in DeviceState if s in present),
    )


def coarse(strip: Sequence[Labelled[DeviceState]], start: float, cell_s: float) -> tuple[Labelled[DeviceState], ...]:
    """The strip in cells of `cell_s`, each in the state that filled most of it; times count from `start`.

    Instants that the strip does not cover (between two sessions) stay uncovered.
    """
    if cell_s <= 0:
        return ()
    cells: dict[int, dict[DeviceState, float]] = {}
    for piece in strip:
        left, right = (piece.start - start) / cell_s, (piece.end - start) / cell_s
        for cell in range(int(left), int(right) + 1):
            inside = min(right, cell + 1) - max(left, cell)
            if inside > 0:
                filled = cells.setdefault(cell, {})
                filled[piece.label] = filled.get(piece.label, 0.0) + inside
    merged: list[Labelled[DeviceState]] = []
    for cell in sorted(cells):
        filled = cells[cell]
        label = max(filled, key=lambda s: filled[s])
        if merged and merged[-1].label is label and merged[-1].end == cell * cell_s:
            merged[-1] = Labelled(merged[-1].start, (cell + 1) * cell_s, label)
        else:
            merged.append(Labelled(cell * cell_s, (cell + 1) * cell_s, label))
    return tuple(merged)
