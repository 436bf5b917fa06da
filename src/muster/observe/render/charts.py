"""The figures as inline SVG: no library, no request, and colours that follow the page's light or dark theme.

Law: text and rules take the page's own variables (`--ink`, `--rule`, `--accent`); stages and states keep their
colours. Everything that came from a run is escaped by `Markup.format`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from markupsafe import Markup

from muster.observe.palette import STAGE_COLOURS, STATE_COLOURS, STATE_NAMES, name
from muster.observe.render import figures
from muster.observe.report import Report

WIDTH, HEIGHT = 960, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 40
STRIP = 26

_RECT = Markup('<rect x="{}" y="{}" width="{}" height="{}" fill="{}"><title>{}</title></rect>')
_LINE = Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>')
_TEXT = Markup('<text x="{}" y="{}" text-anchor="{}" class="label">{}</text>')
_KEY = Markup('<span class="key"><i style="background:{}"></i>{}</span>')


def charts(report: Report) -> dict[str, Markup]:
    """Figure name -> SVG with its legend. A figure without data is left out."""
    drawn = {"learning": _learning(report), "causes": _causes(report), "devices": _devices(report)}
    return {key: svg for key, svg in drawn.items() if svg}


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values from `low` to `high`, about `count` of them."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _learning(report: Report) -> Markup | None:
    data = figures.learning(report)
    if not data.rewards and not data.evaluations:
        return None
    steps = [s for s, _ in data.rewards] + [e.step for e in data.evaluations]
    values = [v for _, v in data.rewards] + [e.high for e in data.evaluations]
    low = min([0.0, *(v for _, v in data.rewards)])
    x = _scale(min(steps), max(max(steps), min(steps) + 1), LEFT, WIDTH - RIGHT)
    y = _scale(low, max([*values, low + 0.1]), HEIGHT - BOTTOM, TOP)
    parts = [*_axes(x, y, ticks(min(steps), max(steps), 10), ticks(low, max(values)), "step", "rate")]
    if data.rewards:
        points = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in data.rewards)
        parts.append(Markup('<polyline points="{}" class="reward"/>').format(points))
    for e in data.evaluations:
        at = f"{x(e.step):.1f}"
        parts.append(_LINE.format(at, f"{y(e.low):.1f}", at, f"{y(e.high):.1f}", "interval"))
        tip = f"version {e.version.number}: {e.passed} of {e.graded}"
        dot = Markup('<circle cx="{}" cy="{}" r="4.5" class="evaluation"><title>{}</title></circle>')
        parts.append(dot.format(at, f"{y(e.pass_rate):.1f}", tip))
    keys = [("var(--accent)", "mean reward of the batch"), ("var(--ink)", "held-out pass rate, 95 % interval")]
    return _figure(HEIGHT, parts, keys)


def _causes(report: Report) -> Markup | None:
    data = figures.causes(report)
    if not data.steps:
        return None
    tallest = max(sum(row[i] for row in data.seconds.values()) for i in range(len(data.steps)))
    x = _scale(0, len(data.steps), LEFT, WIDTH - RIGHT)
    y = _scale(0, tallest or 1.0, HEIGHT - BOTTOM, TOP)
    parts = [*_axes(x, y, (), ticks(0, tallest), "batch (step)", "TTB, seconds")]
    width = min(48.0, 0.8 * (x(1) - x(0)))
    every = math.ceil(len(data.steps) / 20)
    for i, step in enumerate(data.steps):
        middle, base = x(i + 0.5), 0.0
        if i % every == 0:
            parts.append(_TEXT.format(f"{middle:.1f}", HEIGHT - BOTTOM + 16, "middle", step))
        for stage, row in data.seconds.items():
            if row[i] > 0:
                top, height = y(base + row[i]), y(base) - y(base + row[i])
                tip = f"step {step}: {name(stage)} {row[i]:.2f} s"
                left = f"{middle - width / 2:.1f}"
                box = (left, f"{top:.1f}", f"{width:.1f}", f"{height:.1f}")
                parts.append(_RECT.format(*box, STAGE_COLOURS[stage], tip))
                base += row[i]
    return _figure(HEIGHT, parts, [(STAGE_COLOURS[s], name(s)) for s in data.seconds])


def _devices(report: Report) -> Markup | None:
    data = figures.devices(report)
    if not data.strips or data.duration_s <= 0:
        return None
    factor, unit = (1.0, "seconds") if data.duration_s < 600 else (60.0, "minutes")
    height = TOP + STRIP * len(data.strips) + BOTTOM
    x = _scale(0, data.duration_s, LEFT, WIDTH - RIGHT)
    parts: list[Markup] = []
    for tick in ticks(0, data.duration_s / factor, 10):
        parts.append(_TEXT.format(f"{x(tick * factor):.1f}", height - BOTTOM + 16, "middle", f"{tick:g}"))
    parts.append(_TEXT.format((LEFT + WIDTH) // 2, height - 6, "middle", f"{unit} since the start"))
    for row, (device, strip) in enumerate(data.strips.items()):
        top = TOP + row * STRIP
        parts.append(_TEXT.format(LEFT - 8, top + 15, "end", device))
        for p in strip:
            tip = f"{device}: {STATE_NAMES[p.label]}, {p.start:.1f} to {p.end:.1f} s"
            box = (f"{x(p.start):.2f}", top, f"{x(p.end) - x(p.start):.2f}", STRIP - 5)
            parts.append(_RECT.format(*box, STATE_COLOURS[p.label], tip))
    return _figure(height, parts, [(STATE_COLOURS[s], STATE_NAMES[s]) for s in data.states])


def _figure(height: int, parts: Iterable[Markup], keys: Iterable[tuple[str, str]]) -> Markup:
    legend = Markup("").join(_KEY.format(colour, text) for colour, text in keys)
    svg = Markup('<svg viewBox="0 0 {} {}" role="img">{}</svg><p class="legend">{}</p>')
    return svg.format(WIDTH, height, Markup("").join(parts), legend)


def _axes(
    x: Callable[[float], float],
    y: Callable[[float], float],
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_title: str,
    y_title: str,
) -> Iterable[Markup]:
    for value in y_ticks:
        at = f"{y(value):.1f}"
        yield _LINE.format(LEFT, at, WIDTH - RIGHT, at, "rule")
        yield _TEXT.format(LEFT - 8, f"{y(value) + 4:.1f}", "end", f"{value:g}")
    for value in x_ticks:
        yield _TEXT.format(f"{x(value):.1f}", HEIGHT - BOTTOM + 16, "middle", f"{value:g}")
    yield _TEXT.format((LEFT + WIDTH) // 2, HEIGHT - 6, "middle", x_title)
    turned = Markup('<text transform="translate(14 {}) rotate(-90)" text-anchor="middle" class="label">{}</text>')
    yield turned.format((TOP + HEIGHT - BOTTOM) // 2, y_title)


def _scale(low: float, high: float, first: float, last: float) -> Callable[[float], float]:
    return lambda value: first + (last - first) * (value - low) / (high - low)
