"""Exact interval algebra on the time axis.

Law: half-open intervals [start, end); an operation neither invents nor loses an instant. Times are copied, never
averaged, so that differences of neighbouring cuts add up to the whole without drift.

    spans (gaps, overlaps) ─flatten─► pieces that tile [start, end) ─totals─► seconds by label
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

Label = TypeVar("Label")
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Labelled(Generic[Label]):
    """`label` holds during [start, end), in seconds."""

    start: float
    end: float
    label: Label

    @property
    def duration_s(self) -> float:
        return self.end - self.start


def flatten(spans: Iterable[Labelled[Label]], start: float, end: float, fill: Label) -> tuple[Labelled[Label], ...]:
    """Tile [start, end) so that each instant has exactly one label; equal neighbours are merged.

    Where spans overlap, the one that began last wins (the inner one of a nested pair); of two that began together,
    the one that ends first. Where none holds, `fill`. Empty when `end <= start`.
    """
    if end <= start:
        return ()
    inside = sorted(
        (s for s in spans if s.start < end and s.end > start and s.end > s.start),
        key=lambda s: (s.start, -s.end),
    )
    cuts = sorted({start, end, *(c for s in inside for c in (s.start, s.end) if start < c < end)})
    active: list[tuple[int, float, Label]] = []  # (-order, end, label): the latest span is on top
    pieces: list[Labelled[Label]] = []
    upcoming = 0
    for left, right in pairwise(cuts):
        while upcoming < len(inside) and inside[upcoming].start <= left:
            heapq.heappush(active, (-upcoming, inside[upcoming].end, inside[upcoming].label))
            upcoming += 1
        while active and active[0][1] <= left:
            heapq.heappop(active)
        label = active[0][2] if active else fill
        if pieces and pieces[-1].label == label:
            left = pieces.pop().start
        pieces.append(Labelled(left, right, label))
    return tuple(pieces)


def totals(pieces: Iterable[Labelled[Label]]) -> dict[Label, float]:
    """Seconds by label."""
    seconds: dict[Label, float] = {}
    for piece in pieces:
        seconds[piece.label] = seconds.get(piece.label, 0.0) + piece.duration_s
    return seconds


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The covered instants as disjoint intervals in order; touching ones are joined, empty ones vanish."""
    merged: list[Interval] = []
    for left, right in sorted(i for i in intervals if i[1] > i[0]):
        if merged and left <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], right))
        else:
            merged.append((left, right))
    return merged


def clip(disjoint: Sequence[Interval], start: float, end: float) -> list[Interval]:
    """The part of ordered, disjoint intervals that lies inside [start, end)."""
    return [(max(a, start), min(b, end)) for a, b in disjoint if a < end and b > start]


def overlap_s(left: Sequence[Interval], right: Sequence[Interval]) -> float:
    """Seconds that two unions (ordered, disjoint) have in common."""
    total, i, j = 0.0, 0, 0
    while i < len(left) and j < len(right):
        total += max(0.0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return total
