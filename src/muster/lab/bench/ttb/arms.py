"""The arms of `muster bench ttb`: which tables of the declaration each lays over the baseline.

    baseline │ each part alone │ the parts one after the other │ all of them │ all with a policy │ all with faults

Law: pure. Every arm of a fleet has the same programs; they differ in what is done with them.
"""

from __future__ import annotations

from dataclasses import dataclass

from muster.lab.bench.ttb.declaration import Declaration
from muster.lab.collection.collection import CollectionWorld

MAIN = "node"
"""The fleet of the ablation, the policies and the faults."""
BASELINE = "baseline"
ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """Arm of the benchmark. `kind` groups the rows of the table: ablation, regime, policy, faults."""

    kind: str
    fleet: str
    name: str
    world: CollectionWorld

    @property
    def key(self) -> str:
        return f"{self.fleet}/{self.name}"


def arms(declared: Declaration) -> list[Arm]:
    """In the order in which they are shown. Raises `ConfigError`."""
    return [*ablation(declared), *regimes(declared), *policies(declared), *faults(declared)]


def ablation(declared: Declaration, fleet: str = MAIN) -> list[Arm]:
    """The baseline; each part alone; the parts added one by one; all."""
    names = tuple(declared.parts)
    chosen: dict[str, tuple[str, ...]] = {BASELINE: ()}
    chosen |= {f"{name} alone": (name,) for name in names}
    chosen |= {f"+ {name}": names[: i + 1] for i, name in enumerate(names[:-1]) if i > 0}
    chosen[ALL] = names
    return [
        Arm(kind="ablation", fleet=fleet, name=name, world=declared.world(fleet, parts=parts))
        for name, parts in chosen.items()
    ]


def regimes(declared: Declaration) -> list[Arm]:
    """Baseline and all, where something else is short."""
    return [
        Arm(kind="regime", fleet=fleet, name=name, world=declared.world(fleet, parts=parts))
        for fleet in declared.fleets
        if fleet != MAIN
        for name, parts in ((BASELINE, ()), (ALL, tuple(declared.parts)))
    ]


def policies(declared: Declaration) -> list[Arm]:
    """All, and a batch policy."""
    return [_over(declared, "policy", name, declared.policies[name]) for name in declared.policies]


def faults(declared: Declaration) -> list[Arm]:
    """All, and infrastructure that fails."""
    return [_over(declared, "faults", f"{name} faults", declared.faults[name]) for name in declared.faults]


def _over(declared: Declaration, kind: str, name: str, table: dict[str, object]) -> Arm:
    world = declared.world(MAIN, parts=tuple(declared.parts), over=(table,))
    return Arm(kind=kind, fleet=MAIN, name=name, world=world)
