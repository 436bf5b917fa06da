"""States of sandboxes kept beyond the process that made them: one small file for each, which says what it needs.

    keep ─► its layers are frozen ─► <state_dir>/kept/<id>.json ─► restore: Snapshot, in any later process
    discard ─► first the file goes, then what only it needed                  └─► None: too old, or not of this boot

Law: while the file is there, all that it names is whole. So a killed process leaves either a state that can be forked,
or layers that nobody names, which the reaper takes (`state.reap`). After a reboot nothing is trusted: what was written
in the last moments before it may be there by name alone.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from muster import clock
from muster.sandbox.port import Snapshot

KEPT = "kept"
"""The directory of kept states, below the state directory."""
DAY_S = 86_400.0


class KeptStates:
    """The states kept in `directory`. Those kept or restored by this process are remembered.

    Example: `kept.add(snapshot)`, and in the next process `kept.load(snapshot.id)`
    """

    def __init__(self, directory: Path, *, lifetime_s: float) -> None:
        self.directory = directory.absolute()
        self._lifetime_s = lifetime_s
        self._here: dict[str, Snapshot] = {}

    def get(self, id: str) -> Snapshot | None:
        """If this process knows it."""
        return self._here.get(id)

    def add(self, snapshot: Snapshot) -> bool:
        """Write it down, whole or not at all. False: the disk does not take it."""
        assert snapshot.service is None, "the state of a service is in its process"
        state = asdict(snapshot) | {
            "layers": [str(layer) for layer in snapshot.layers],
            "env": dict(snapshot.env),
            "boot": _boot(),
            "until": clock.now() + self._lifetime_s,
        }
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            path = _path(self.directory, snapshot.id)
            draft = path.with_suffix(".new")
            draft.write_text(json.dumps(state), encoding="utf-8")
            draft.replace(path)  # no fsync, which holds up the event loop: what it would guard against is not trusted
        except OSError:
            return False
        self._here[snapshot.id] = snapshot
        return True

    def load(self, id: str) -> Snapshot | None:
        """As another process wrote it down. Call `remember` once what it names is held."""
        state = _read(_path(self.directory, id))
        if state is None or state["id"] != id:
            return None
        layers = tuple(Path(layer) for layer in state["layers"])
        plain = {name: state[name] for name in ("id", "workdir", "env", "shell_state", "user")}
        return Snapshot(**plain, layers=layers)

    def remember(self, snapshot: Snapshot) -> None:
        self._here[snapshot.id] = snapshot

    def remove(self, id: str) -> None:
        """Missing is fine."""
        self._here.pop(id, None)
        _path(self.directory, id).unlink(missing_ok=True)


def is_kept(directory: Path, id: str) -> bool:
    """Whether the state of that id can still be asked for."""
    return _read(_path(directory, id)) is not None


def needed_layers(directory: Path) -> frozenset[Path]:
    """Layers that kept states of `directory` name. Those that nobody can ask for any more are removed on the way."""
    layers: set[Path] = set()
    for path in sorted(directory.glob("*.json")):
        state = _read(path)
        if state is None:
            path.unlink(missing_ok=True)
        else:
            layers.update(Path(layer) for layer in state["layers"])
    return frozenset(layers)


def _read(path: Path) -> dict[str, Any] | None:
    """Read what a file says, while it holds."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if state["boot"] == _boot() and clock.now() < state["until"]:
            return state
    return None


def _path(directory: Path, id: str) -> Path:
    return directory / f"{id.replace('/', '+').replace(':', '+')}.json"


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
