"""From what a user names to the world that is simulated: a run's journal, a declared file, a key with a value.

Law: a key of the run's configuration (`sandbox.slots`) changes the `Setup` that the world is made from; a key of the
world (`training.step_s`) changes the world itself. A key that would change nothing in the simulation is refused:
silence would look like an answer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from muster.config import RunConfig, assign, overridden, validate
from muster.errors import ConfigError, UserError
from muster.journal import Journal
from muster.lab.collection.collection import CollectionWorld
from muster.lab.emulated.presets import preset
from muster.lab.plan.changes import Change
from muster.lab.plan.fit.programs import Groups
from muster.lab.plan.fit.run import RECENT, SETTLED, fit_run
from muster.lab.plan.fit.sharing import Shares
from muster.lab.plan.fit.world import Fitted, MeasuredBatches, Setup

ONE_MACHINE = "engine and trainer share this machine's cores: while both compute, each is taken to be half as fast"
ENOUGH = 1024
"""Trajectories of a simulation that say how long its batches take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Baseline that every change is compared with. `config`, `fitted`, `measured`: of a run, not of a declared world.

    world: long enough to settle; its first `skipped` batches do not count.
    """

    source: str
    world: CollectionWorld
    skipped: int
    groups: Groups | None = None
    config: RunConfig | None = None
    fitted: Fitted | None = None
    alone: Shares | None = None
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> MeasuredBatches | None:
        return self.fitted.measured if self.fitted else None

    def reproduction(self) -> CollectionWorld | None:
        """The run as it was, with as many batches; None for a declared world."""
        return self._configured((), self.measured.batches) if self.measured else None

    def changed(self, settings: Sequence[str], *, batches: int | None = None) -> Change:
        """The world under `key=value` settings, all together; as long as `world` without `batches`.

        Raises `ConfigError`.
        """
        name = " ".join(settings)
        batches = batches or self.world.training.steps
        ours = [s for s in settings if not _of_world(s)] if self.fitted else []
        values = self._configured(ours, batches).model_dump()
        for setting in settings:
            if setting not in ours:
                assign(values, setting)
        changed = _validated(values, source=name)
        if settings and changed == self._configured((), batches):
            raise ConfigError(f"{name}: changes nothing in the simulation")
        return Change(name=name, says=f"set {', '.join(settings)}", world=changed)

    def like(self, other: RunConfig, *, name: str, batches: int) -> Change:
        """The world under another run's configuration."""
        assert self.fitted is not None, "a declared world is like no run"
        return Change(name=name, says=f"do as {name} did", world=self.fitted.world(Setup.of(other), batches=batches))

    def _configured(self, settings: Sequence[str], batches: int) -> CollectionWorld:
        if self.config is None or self.fitted is None:
            return self.world
        config = overridden(self.config, settings) if settings else self.config
        return self.fitted.world(Setup.of(config), batches=batches)


def base_of(journal: Journal, *, source: str, engine: str | None = None) -> Base:
    """A run. `engine`: a preset or a file instead of a fit. Raises `UserError`."""
    config = config_of(journal, source=source)
    setup = Setup.of(config)
    try:
        fitted = fit_run(journal, setup, engine=preset(engine) if engine else None, shared_cores=engine is None)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return Base(
        source=source,
        world=fitted.world(setup, batches=SETTLED + _counted(setup)),
        skipped=SETTLED,
        groups=fitted.groups,
        config=config,
        fitted=fitted,
        alone=None if engine else fitted.alone,
        notes=(*fitted.notes, *([] if engine else [ONE_MACHINE])),
    )


def config_of(journal: Journal, *, source: str) -> RunConfig:
    """Configuration of the run. Raises `ConfigError`."""
    return validate(journal.meta()["config"], source=source)


def _counted(setup: Setup) -> int:
    """Batches that count, fewer of large ones: a simulated trajectory costs milliseconds, and there are many draws."""
    trajectories = setup.schedule.groups_per_batch * setup.schedule.group_size
    return min(RECENT, max(3, ENOUGH // trajectories))


def declared(path: Path) -> Base:
    """A world in TOML, with the sections and keys of `CollectionWorld`. Raises `ConfigError`."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    world = _validated(values, source=str(path))
    return Base(source=str(path), world=world, skipped=min(SETTLED, world.training.steps // 3))


def _of_world(setting: str) -> bool:
    """Whether the key is the world's: `schedule` is a section of both, and means the same."""
    section = setting.partition(".")[0].strip()
    return section in CollectionWorld.model_fields and section not in RunConfig.model_fields


def _validated(values: dict[str, Any], *, source: str) -> CollectionWorld:
    try:
        return CollectionWorld.model_validate(values)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'world'}: {e['msg']}" for e in error.errors()[:3]]
        raise ConfigError(f"{source}: {'; '.join(problems)}") from None
