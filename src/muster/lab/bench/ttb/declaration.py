"""Declaration of what `muster bench ttb` compares, in `ttb.toml`: one file, every number with its source.

    [workload] [fleets.X] [baseline] [parts.Y] [policies.Z] ─► world(fleet, parts, policy): tables laid over each other

Law: an arm is nothing but tables: the fleet's, the baseline's, then those of the parts that are switched on. Code
chooses which tables; no number of an arm stands anywhere else.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from muster.errors import ConfigError
from muster.lab.collection.collection import CollectionWorld

BUILT_IN = Path(__file__).with_name("ttb.toml")

Table = dict[str, Any]


class Declaration(BaseModel):
    """The file, table by table; each value is a part of a `CollectionWorld` as a plain table.

    Example: `read(BUILT_IN).world("node", parts=("routing", "execution", "assembly"))`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    workload: Table = Field(description="fields of `WorkloadConfig`")
    fleets: dict[str, Table] = Field(min_length=1, description="engines and slots, by name; `about` says what it is")
    baseline: Table = Field(description="what common harnesses do")
    parts: dict[str, Table] = Field(description="what Muster does instead, in the order of the ablation")
    policies: dict[str, Table] = Field(default_factory=dict[str, Table], description="beyond one fixed cohort")
    faults: dict[str, Table] = Field(default_factory=dict[str, Table], description="infrastructure that fails")
    grid: dict[str, dict[str, Table]] = Field(
        default_factory=dict[str, dict[str, Table]], description="sensitivity: axis, then cell, to what it changes"
    )

    def world(self, fleet: str, *, parts: Sequence[str] = (), over: Sequence[Table] = ()) -> CollectionWorld:
        """The world of one arm. `over`: more tables, laid over the rest. Raises `ConfigError` naming the table."""
        chosen = {name: value for name, value in self._fleet(fleet).items() if name != "about"}
        tables = [chosen, self.baseline, *(self.parts[p] for p in parts), {"workload": self.workload}, *over]
        merged: Table = {}
        for table in tables:
            merged = laid_over(merged, table)
        try:
            return CollectionWorld.model_validate(merged)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "world"
            raise ConfigError(
                f"fleet {fleet!r} with {', '.join(parts) or 'no parts'}: {where}: {first['msg']}"
            ) from None

    def about(self, fleet: str) -> str:
        return str(self._fleet(fleet).get("about", fleet))

    def _fleet(self, name: str) -> Table:
        if name not in self.fleets:
            raise ConfigError(f"no fleet {name!r}; there are {', '.join(self.fleets)}")
        return self.fleets[name]


def read(path: Path = BUILT_IN) -> Declaration:
    """Raises `ConfigError` naming file and key."""
    try:
        return Declaration.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> Table:
    """`above` wins, key by key, as deep as both are tables. A distribution (it has a median) is replaced whole."""
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and "median" not in value:
            merged[name] = laid_over(cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", value))
        else:
            merged[name] = value
    return merged
