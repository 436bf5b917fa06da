"""Numbers as people read them: three significant digits, with the unit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NOTHING = "–"


def seconds(value: float | None) -> str:
    """`0.0042` reads as "4.2 ms", `75` as "75.0 s", `5400` as "90.0 min"."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0 s"
    for limit, factor, unit in ((1.0, 1e3, "ms"), (600.0, 1.0, "s"), (6000.0, 1 / 60, "min")):
        if abs(value) < limit:
            return f"{_three(value * factor)} {unit}"
    return f"{_three(value / 3600)} h"


def clock(value: float | None) -> str:
    """`3725` reads as "1:02:05"."""
    if value is None:
        return NOTHING
    whole = round(value)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def percent(share: float | None) -> str:
    """`0.042` reads as "4.2 %"; what is not 0 never reads as 0."""
    if share is None:
        return NOTHING
    if 0 < abs(share) < 0.0005:
        return "< 0.1 %" if share > 0 else "> -0.1 %"
    return f"{100 * share:.0f} %" if abs(share) >= 0.995 else f"{100 * share:.1f} %"


def points(value: float) -> str:
    """A difference of shares, signed, in percentage points."""
    return f"{100 * value:+.1f} points"


def number(value: float | None) -> str:
    """Counts with separators, small values in scientific notation."""
    if value is None:
        return NOTHING
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.3g}" if abs(value) < 1 else _three(value)


def size(value_bytes: float | None) -> str:
    if value_bytes is None:
        return NOTHING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value_bytes) < 1000 or unit == "GB":
            break
        value_bytes /= 1000
    return f"{_three(value_bytes)} {unit}"


def ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}x"


def plural(count: int, noun: str) -> str:
    """`1, "batch"` reads as "1 batch", `2, "batch"` as "2 batches"."""
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "s", "x")) else "s"
    if count != 1 and noun.endswith("y"):
        noun, ending = noun[:-1], "ies"
    return f"{count:,} {noun}{ending}"


def line(text: str, limit: int = 100) -> str:
    """On one line, and no longer than `limit` characters."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def quantile(values: Sequence[float], q: float) -> float | None:
    return float(np.quantile(values, q)) if len(values) else None


def _three(value: float) -> str:
    magnitude = abs(value)
    digits = 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2
    return f"{value:,.{digits}f}"
