"""The state directory: who owns which layer, and what a killed controller left behind.

    <state_dir>/images/<key>              cached image layers, shared by all runs, never removed here
    <state_dir>/runs/<label>-<pid>/lock   held (flock) while its controller lives
                                  /layers/<n>/{fs,work}
    <state_dir>/kept/<id>.json            a kept state: the layers that outlive their run (`kept`)
    <state_dir>/l/<run>/<n> ─► a layer    short names, where a long chain would not fit into one mount call

Law: a run directory whose lock is free belongs to nobody and may be reaped, with its processes, cgroups, mounts
and short names; so may cgroups of a run that has no directory any more. A writable layer is removed when its last
holder (a live sandbox or a snapshot) lets go. Layers that a kept state names stay where they are, in a directory that
the next process adopts: it takes the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import signal
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from muster.sandbox.cgroup import PARENT, Cgroups
from muster.sandbox.files import remove_tree
from muster.sandbox.kept import KEPT, needed_layers
from muster.sandbox.namespace.storage.mounts import unmount_below

OPTION_BYTES = 3500
"""Of layer paths in the options of one mount, which must fit into a page of 4096 bytes with the rest of them."""
_PREFIX_BYTES = len("/oldroot") + 1  # bubblewrap's, and a colon


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One writable layer: `fs` is the overlay's upper, `work` its scratch on the same file system."""

    root: Path

    @property
    def fs(self) -> Path:
        return self.root / "fs"

    @property
    def work(self) -> Path:
        return self.root / "work"


class RunDirectory:
    """The part of the state directory that this controller owns."""

    def __init__(self, state_dir: Path, label: str) -> None:
        runs = state_dir / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        safe = re.sub(r"[^A-Za-z0-9_.]+", "-", label)[:32] or "run"
        place = _place(runs)
        with _exclusive(runs / ".lock"):
            for attempt in itertools.count():
                self.name = f"{safe}-{os.getpid()}-{place}{attempt}"
                self.path = runs / self.name
                with contextlib.suppress(FileExistsError):
                    self.path.mkdir()
                    break
            self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.path / "layers").mkdir()
        self._adopted: dict[Path, int] = {}  # directories of dead runs, and our locks on them
        self._numbers = itertools.count()
        self._holders: Counter[Path] = Counter()
        self._aliases = _aliases(self.path)
        self._short: dict[Path, Path] = {}

    def new_layer(self) -> Layer:
        """An empty writable layer with one holder."""
        layer = Layer(root=self.path / "layers" / str(next(self._numbers)))
        layer.root.mkdir()
        layer.fs.mkdir()
        layer.fs.chmod(0o755)
        layer.work.mkdir()
        self._holders[layer.fs] = 1
        return layer

    def new_directory(self) -> Path:
        """A fresh private directory of this run; the caller removes it."""
        path = self.path / "layers" / str(next(self._numbers))
        path.mkdir(mode=0o700)
        return path

    def adopt(self, layers: tuple[Path, ...]) -> bool:
        """One holder for the layers of a kept state, also those of dead runs, which are ours from now on.

        False, and nothing is held: one of them is gone, or another process has it.
        """
        others = {fs.parents[2] for fs in layers if fs.is_relative_to(self.path.parent) and not self.owns(fs)}
        with _exclusive(self.path.parent / ".lock"):
            if not all(layer.is_dir() for layer in layers):
                return False
            for run in sorted(others):
                lock = _lock(run)
                if lock is None:
                    return False
                self._adopted[run] = lock
        for fs in layers:
            if self.owns(fs):
                self._holders[fs] += 1
        return True

    def hold(self, layers: tuple[Path, ...]) -> None:
        """One more holder for those layers that are ours; image layers are not counted."""
        for fs in layers:
            if self.owns(fs):
                assert self._holders[fs] > 0, f"{fs} was removed"
                self._holders[fs] += 1

    def release(self, layers: tuple[Path, ...]) -> list[Path]:
        """One holder less. Returns the directories that nobody holds now; the caller removes them."""
        gone: list[Path] = []
        for fs in layers:
            if self.owns(fs):
                self._holders[fs] -= 1
                if self._holders[fs] == 0:
                    del self._holders[fs]
                    gone.append(fs.parent)
        return gone

    def short(self, layers: tuple[Path, ...]) -> tuple[Path, ...]:
        """The same layers by names that fit into one mount call: as they are if they do, else by links."""
        if sum(len(os.fsencode(layer)) + _PREFIX_BYTES for layer in layers) <= OPTION_BYTES:
            return layers
        return tuple(self._alias(layer) for layer in layers)

    def _alias(self, layer: Path) -> Path:
        alias = self._short.get(layer)
        if alias is None:
            self._aliases.mkdir(parents=True, exist_ok=True)
            alias = self._short[layer] = self._aliases / str(len(self._short))
            # relative: bubblewrap resolves it below a root of its own
            alias.symlink_to(os.path.relpath(layer.resolve(), self._aliases.resolve()))
        return alias

    def owns(self, fs: Path) -> bool:
        return fs.is_relative_to(self.path) or any(fs.is_relative_to(run) for run in self._adopted)

    @property
    def held_layers(self) -> int:
        return len(self._holders)

    def close(self) -> None:
        """Remove the directory, but for what is kept, and give up the lock."""
        for run, lock in ((self.path, self._lock), *self._adopted.items()):
            _clear(run)
            os.close(lock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """Runs and processes that `reap` removed; runs by name."""

    runs: tuple[str, ...]
    processes: int


def reap(state_dir: Path, cgroups: Cgroups | None = None) -> Reaped:
    """Remove what dead controllers left: processes, cgroups, directories. Live runs are left alone."""
    cgroups = cgroups or Cgroups.detect()
    runs = state_dir / "runs"
    if not runs.is_dir():
        return Reaped(runs=(), processes=0)
    removed: list[str] = []
    processes = 0
    with _exclusive(runs / ".lock"):
        for path in sorted(p for p in runs.iterdir() if p.is_dir() and not _owned(p)):
            processes += _kill_by_argument(str(path))
            cgroups.remove_run(path.name, kill=True)
            if _clear(path):
                removed.append(path.name)
        for name in _without_directory(runs, cgroups):
            cgroups.remove_run(name, kill=True)
            removed.append(name)
    return Reaped(runs=tuple(removed), processes=processes)


def _place(runs: Path) -> str:
    """Marks the runs of one state directory: cgroups are shared by all of them."""
    return hashlib.sha256(str(runs.resolve()).encode()).hexdigest()[:6]


def _aliases(run: Path) -> Path:
    """Directory of the short names of a run's layers: found again by the run's name alone."""
    return run.parent.parent / "l" / hashlib.sha256(run.name.encode()).hexdigest()[:5]


def _clear(run: Path) -> bool:
    """Remove a run's directory with all that belongs to it. False: layers of kept states are in it, and stay."""
    unmount_below(run)
    remove_tree(_aliases(run))
    # asked for only now: the run's process is dead, or is us, so nothing of it is added to what is kept
    kept = {fs.parent for fs in needed_layers(run.parent.parent / KEPT) if fs.is_relative_to(run)}
    if not kept:
        remove_tree(run)
        return True
    for path in run.iterdir():
        if path.name not in ("layers", "lock"):
            remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for layer in (run / "layers").iterdir():
        if layer not in kept:
            remove_tree(layer)
    return False


def _without_directory(runs: Path, cgroups: Cgroups) -> list[str]:
    """Runs of this state directory that have cgroups and no directory: somebody removed it by hand."""
    tops = [hierarchy / PARENT for hierarchy in dict.fromkeys(cgroups.hierarchies.values())]
    names = {path.name for top in tops if top.is_dir() for path in top.iterdir() if path.is_dir()}
    mine = re.compile(rf".*-\d+-{_place(runs)}\d+")
    return sorted(name for name in names if mine.fullmatch(name) and not (runs / name).is_dir())


@contextlib.contextmanager
def _exclusive(path: Path) -> Generator[None]:
    """Runs are made and reaped one at a time, or a reaper would take a run that is half made."""
    lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _owned(run: Path) -> bool:
    """Whether a living controller holds the run's lock."""
    lock = _lock(run)
    if lock is None:
        return (run / "lock").exists()
    os.close(lock)
    return False


def _lock(run: Path) -> int | None:
    """A descriptor that holds the run's lock; None if another process has it, or there is none."""
    try:
        lock = os.open(run / "lock", os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def _kill_by_argument(needle: str) -> int:
    """Kill bubblewrap processes whose command line names a path below `needle`. Returns how many."""
    killed = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            if Path(os.fsdecode(arguments[0])).name == "bwrap" and any(
                os.fsdecode(a).startswith(needle + "/") for a in arguments[1:]
            ):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
    return killed
