"""Metrics: values that know how to reduce, and sinks that take them.

Law: a metric is observed many times between two steps and written once; how the observations become one
number is decided where the value is made, never where it is shown.

    observe("reward", Mean.of(1.0)) … observe("reward", Mean.of(0.0)) ─flush(step)─► sinks: {"reward": 0.5}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from muster import clock


class Reducible(Protocol):
    """`a + b` merges two observations; `values(name)` gives the numbers to write."""

    def __add__(self, other: Self, /) -> Self: ...

    def values(self, name: str) -> dict[str, float]: ...


@dataclass(frozen=True, slots=True)
class Mean:
    """A weighted mean: `Mean.of(0.5, weight=tokens)`."""

    total: float
    weight: float

    @classmethod
    def of(cls, value: float, weight: float = 1.0) -> Mean:
        return cls(value * weight, weight)

    def __add__(self, other: Mean, /) -> Mean:
        return Mean(self.total + other.total, self.weight + other.weight)

    def values(self, name: str) -> dict[str, float]:
        return {name: self.total / self.weight} if self.weight else {}


@dataclass(frozen=True, slots=True)
class Sum:
    total: float

    def __add__(self, other: Sum, /) -> Sum:
        return Sum(self.total + other.total)

    def values(self, name: str) -> dict[str, float]:
        return {name: self.total}


@dataclass(frozen=True, slots=True)
class Last:
    """The most recent observation."""

    value: float

    def __add__(self, other: Last, /) -> Last:
        return other

    def values(self, name: str) -> dict[str, float]:
        return {name: self.value}


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Keeps every observation; writes `name/p50`, `name/p90` and `name/max`."""

    observations: tuple[float, ...]

    @classmethod
    def of(cls, value: float) -> Quantiles:
        return cls((value,))

    def __add__(self, other: Quantiles, /) -> Quantiles:
        return Quantiles(self.observations + other.observations)

    def values(self, name: str) -> dict[str, float]:
        p50, p90, top = np.quantile(self.observations, (0.5, 0.9, 1.0))
        return {f"{name}/p50": float(p50), f"{name}/p90": float(p90), f"{name}/max": float(top)}


class Sink(Protocol):
    def write(self, step: int, at: float, values: Mapping[str, float]) -> None: ...


class Metrics:
    """Collects observations and writes them at `flush`. Not thread-safe: it belongs to the loop."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = tuple(sinks)
        self._pending: dict[str, Reducible] = {}

    def observe(self, name: str, value: Reducible) -> None:
        before = self._pending.get(name)
        assert before is None or type(before) is type(value), f"{name} is reduced in two ways"
        self._pending[name] = value if before is None else before + value

    def flush(self, step: int) -> dict[str, float]:
        """Write what was observed since the last flush, and return it."""
        values: dict[str, float] = {}
        for name, value in self._pending.items():
            values.update(value.values(name))
        self._pending.clear()
        at = clock.now()
        for sink in self._sinks:
            sink.write(step, at, values)
        return values


class JsonlSink:
    """One JSON object a step, appended; a line is written whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, step: int, at: float, values: Mapping[str, float]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "at": at, **values}) + "\n")
