"""`muster bench ttb --grid`: the same comparison with one thing changed at a time, to see where the gain does not hold.

    ttb.toml [grid.AXIS] CELL ─laid over the declaration─► baseline, all ─► cut and T over bound, in one table

Law: a cell changes what is declared and nothing else; each has its own baseline. The first row is the declaration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from muster.lab.bench.ttb.arms import ALL, BASELINE, MAIN
from muster.lab.bench.ttb.declaration import BUILT_IN, Declaration, laid_over, read
from muster.lab.bench.ttb.virtual import Job, Runs, cut, gathered
from muster.lab.result import BenchResult, Value

AS_DECLARED = ("as declared", "")


def run_grid(
    *, repetitions: int, declaration: Path = BUILT_IN, jobs: int = 0, say: Callable[[str], None] = lambda line: None
) -> BenchResult:
    """Baseline and all in every cell. Raises `ConfigError` for a cell that cannot be."""
    todo: list[Job] = []
    cells = dict(_cells(read(declaration)))
    for (axis, cell), declared in cells.items():
        for arm, parts in ((BASELINE, ()), (ALL, tuple(declared.parts))):
            world = declared.world(MAIN, parts=parts)
            todo += [Job(key=_key(axis, cell, arm), world=world, seed=seed) for seed in range(repetitions)]
    runs = gathered(todo, jobs, say)
    return BenchResult(
        name="ttb grid",
        rows=[_row(axis, cell, runs) for axis, cell in cells],
        notes={"repetitions": repetitions, "declaration": declaration.read_text(encoding="utf-8")},
    )


def _cells(declared: Declaration) -> Iterator[tuple[tuple[str, str], Declaration]]:
    yield AS_DECLARED, declared
    plain = {name: getattr(declared, name) for name in Declaration.model_fields}
    for axis, cells in declared.grid.items():
        for cell, table in cells.items():
            yield (axis, cell), Declaration.model_validate(laid_over(plain, table))


def _row(axis: str, cell: str, runs: Runs) -> dict[str, Value]:
    ours, theirs = _key(axis, cell, ALL), _key(axis, cell, BASELINE)
    bounds = Counter(m.bound for m in runs[ours])
    return {
        "axis": axis,
        "cell": cell,
        "baseline_s": median(m.ttb_s for m in runs[theirs]),
        "ours_s": median(m.ttb_s for m in runs[ours]),
        "cut": cut(runs, ours, theirs),
        "baseline_score": median(m.score for m in runs[theirs]),
        "score": median(m.score for m in runs[ours]),
        "bound": bounds.most_common(1)[0][0],
        "baseline_hit_rate": median(m.hit_rate for m in runs[theirs]),
        "hit_rate": median(m.hit_rate for m in runs[ours]),
        "length_ratio": median(m.length_ratio for m in runs[ours]),
    }


def _key(axis: str, cell: str, arm: str) -> str:
    return f"{axis}/{cell}/{arm}"
