"""The state directory: who owns which layer, and what a killed controller left behind.

    <state_dir>/images/<digest>/fs        cached image layers, shared by all runs, never removed here
    <state_dir>/runs/<label>-<pid>/lock   held (flock) while its controller lives
                                  /layers/<n>/{fs,work}

Law: a run directory whose lock is free belongs to nobody and may be reaped, with its cgroups and processes.
A writable layer is removed when its last holder (a live sandbox or a snapshot) lets go.
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

from muster.sandbox.cgroup import Cgroups
from muster.sandbox.files import remove_tree


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
        # cgroups are shared by all state directories: the name tells runs of one process in two of them apart
        place = hashlib.sha256(str(runs.resolve()).encode()).hexdigest()[:6]
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
        self._numbers = itertools.count()
        self._holders: Counter[Path] = Counter()

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

    def owns(self, fs: Path) -> bool:
        return fs.is_relative_to(self.path)

    @property
    def held_layers(self) -> int:
        return len(self._holders)

    def close(self) -> None:
        """Remove the directory and give up the lock."""
        remove_tree(self.path)
        os.close(self._lock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """What `reap` removed, by run name."""

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
            remove_tree(path)
            removed.append(path.name)
    return Reaped(runs=tuple(removed), processes=processes)


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
    try:
        lock = os.open(run / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


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
