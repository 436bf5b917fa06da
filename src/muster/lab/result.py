"""Result of a benchmark: rows of figures, and targets that are met or missed.

Law: a target compares a measured value with a threshold that was written down before. Absolute speeds depend on
the machine and its neighbours, so targets are ratios of two sides measured in the same run.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Value = str | int | float

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Target of a benchmark: a measured value and its threshold.

    Example: `Target(name="speedup_32", value=2.1, operator=">=", threshold=1.9).met`
    """

    name: str
    value: float
    operator: Literal[">=", "<="]
    threshold: float

    @property
    def met(self) -> bool:
        """False for a value that is not a number."""
        return _OPERATORS[self.operator](self.value, self.threshold)

    def __str__(self) -> str:
        verdict = "met" if self.met else "missed"
        return f"target {self.name} {self.value:.4g} {self.operator} {self.threshold:g} {verdict}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Result of a benchmark. Rows share their keys, which are the table's columns."""

    name: str
    rows: Sequence[Mapping[str, Value]]
    targets: Sequence[Target] = ()
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])  # machine, versions, sizes

    @property
    def met(self) -> bool:
        """Whether every target is met; `--check` exits by it."""
        return all(target.met for target in self.targets)

    def table(self) -> str:
        """Aligned columns, then one line per target."""
        columns = list(self.rows[0]) if self.rows else []
        cells = [columns, *([_text(row.get(c, "")) for c in columns] for row in self.rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
        return "\n".join([*lines, *map(str, self.targets)])

    def to_json(self) -> str:
        targets = [
            {
                "name": t.name,
                "value": t.value,
                "operator": t.operator,
                "threshold": t.threshold,
                "met": t.met,
            }
            for t in self.targets
        ]
        body = {"bench": self.name, "rows": [dict(r) for r in self.rows], "targets": targets, "notes": self.notes}
        return json.dumps(body, indent=2)


def _text(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
