"""Resource limits and counters of one sandbox, on cgroup v1 and v2.

Law: this file alone knows the cgroup file system. A host that lets us write none gives sandboxes without
these limits (`Cgroups.detect` says which controllers it found; `muster doctor` shows it), never an error.

    <hierarchy>/muster/<run>/<sandbox>      v1: one directory per controller; v2: one for all
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from muster import clock
from muster.types import Limits

ROOT = Path("/sys/fs/cgroup")
PARENT = "muster"
CPU_PERIOD_US = 100_000
_FILE_BYTES = 4096  # more than any file of counters holds
_REMOVE_TRIES = 100
_REMOVE_PAUSE_S = 0.01
CONTROLLERS = ("memory", "pids", "cpu")
ACCOUNTING = "cpuacct"  # v1 counts CPU time in a hierarchy of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupSetting:
    """Write `value` to `file` of `controller`. `optional` when old kernels or hosts without swap lack it."""

    controller: str
    file: str
    value: str
    optional: bool = False


def settings(limits: Limits, version: int) -> tuple[CgroupSetting, ...]:
    """The writes that put `limits` in force. File names: the kernel's cgroup-v1 and cgroup-v2 documents."""
    result: list[CgroupSetting] = []
    if limits.memory_bytes is not None:
        memory = str(limits.memory_bytes)
        if version == 1:
            result.append(CgroupSetting(controller="memory", file="memory.limit_in_bytes", value=memory))
            # memory and swap together: swap must not stretch the limit
            swap = CgroupSetting(controller="memory", file="memory.memsw.limit_in_bytes", value=memory, optional=True)
        else:
            result.append(CgroupSetting(controller="memory", file="memory.max", value=memory))
            swap = CgroupSetting(controller="memory", file="memory.swap.max", value="0", optional=True)
        result.append(swap)
    if limits.pids is not None:
        result.append(CgroupSetting(controller="pids", file="pids.max", value=str(limits.pids)))
    if limits.cpus is not None:
        quota = max(1000, round(limits.cpus * CPU_PERIOD_US))
        if version == 1:
            result.append(CgroupSetting(controller="cpu", file="cpu.cfs_quota_us", value=str(quota)))
        else:
            result.append(CgroupSetting(controller="cpu", file="cpu.max", value=f"{quota} {CPU_PERIOD_US}"))
    return tuple(result)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroups:
    """The hierarchies of this host that we may write: controller name to its directory."""

    version: int
    hierarchies: dict[str, Path]

    @classmethod
    def detect(cls, root: Path = ROOT) -> Cgroups:
        """Never raises: without any writable controller the result is empty."""
        if (root / "cgroup.controllers").is_file():
            return cls(version=2, hierarchies=_detect_v2(root))
        names = (*CONTROLLERS, ACCOUNTING)  # two of them may be links to one hierarchy
        found = {n: (root / n).resolve() for n in names if os.access(root / n / "cgroup.procs", os.W_OK)}
        return cls(version=1, hierarchies=found)

    def create(self, run: str, sandbox: str, limits: Limits) -> Cgroup:
        """A new group with `limits` in force; empty (no directories) where the host offers nothing."""
        # a cpu group costs every switch of a task something, and v2 has one group for all
        unwanted = "cpu" if limits.cpus is None and self.version == 1 else None
        wanted = [controller for controller in self.hierarchies if controller != unwanted]
        directories = {c: self.hierarchies[c] / PARENT / run / sandbox for c in wanted}
        for directory in dict.fromkeys(directories.values()):
            directory.mkdir(parents=True, exist_ok=True)
            if self.version == 2:
                _delegate(directory.parent.parent)
                _delegate(directory.parent)
        for setting in settings(limits, self.version):
            if setting.controller in directories:
                path = directories[setting.controller] / setting.file
                with contextlib.suppress(OSError) if setting.optional else contextlib.nullcontext():
                    path.write_text(setting.value)
        return Cgroup(directories=directories, version=self.version)

    def remove_run(self, run: str, *, kill: bool) -> None:
        """Remove the groups of a run; with `kill`, first every process left in them.

        May block for a moment: the kernel counts a dying process until it is gone.
        """
        tops = [h / PARENT / run for h in dict.fromkeys(self.hierarchies.values())]
        for _ in range(_REMOVE_TRIES):
            left = [top for top in tops if top.is_dir() and not _remove_tree(top, kill=kill)]
            if not left:
                return
            clock.block(_REMOVE_PAUSE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """The group of one sandbox. Reads give None where the host cannot tell."""

    directories: dict[str, Path]
    version: int

    @property
    def members_files(self) -> tuple[Path, ...]:
        """A process that writes 0 to each of these is in the group, and so are its later children."""
        return tuple(d / "cgroup.procs" for d in dict.fromkeys(self.directories.values()))

    def oom_kills(self) -> int | None:
        return self._keyed("memory", "memory.oom_control" if self.version == 1 else "memory.events", "oom_kill")

    def pids_refused(self) -> int | None:
        return self._keyed("pids", "pids.events", "max")

    def peak_memory_bytes(self) -> int | None:
        """Highest use since the group was made, or since `reset_peak_memory` where that works."""
        text = self._read("memory", "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak")
        return int(text) if text else None

    def reset_peak_memory(self) -> None:
        """v1 alone: v2 keeps such a peak for each open file, and a descriptor for each sandbox is too many."""
        directory = self.directories.get("memory")
        if directory is not None and self.version == 1:
            with contextlib.suppress(OSError):
                fd = os.open(f"{directory}/memory.max_usage_in_bytes", os.O_WRONLY)
                try:
                    os.write(fd, b"0")
                finally:
                    os.close(fd)

    def cpu_s(self) -> float | None:
        """User and system time of all processes that ever were in the group."""
        if self.version == 1:
            text = self._read(ACCOUNTING, "cpuacct.usage")
            return int(text) / 1e9 if text else None
        microseconds = self._keyed("cpu", "cpu.stat", "usage_usec")
        return None if microseconds is None else microseconds / 1e6

    def remove(self) -> bool:
        """True when nothing is left. False while the kernel still counts a dying process: try again."""
        gone = True
        for directory in dict.fromkeys(self.directories.values()):
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                gone = False
        return gone

    def _read(self, controller: str, file: str) -> str | None:
        """By bare calls: several such files are read around every command."""
        directory = self.directories.get(controller)
        if directory is None:
            return None
        try:
            fd = os.open(f"{directory}/{file}", os.O_RDONLY)
            try:
                return os.read(fd, _FILE_BYTES).decode()
            finally:
                os.close(fd)
        except OSError:
            return None

    def _keyed(self, controller: str, file: str, key: str) -> int | None:
        for line in (self._read(controller, file) or "").splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
        return None


def _detect_v2(root: Path) -> dict[str, Path]:
    offered = (root / "cgroup.controllers").read_text().split()
    try:
        (root / PARENT).mkdir(exist_ok=True)
        _delegate(root)
        enabled = (root / PARENT / "cgroup.controllers").read_text().split()
    except OSError:
        return {}
    return {name: root for name in CONTROLLERS if name in offered and name in enabled}


def _delegate(directory: Path) -> None:
    """v2: let the children of `directory` have our controllers."""
    control = directory / "cgroup.subtree_control"
    have = control.read_text().split()
    for name in CONTROLLERS:
        if name not in have:
            with contextlib.suppress(OSError):  # one that the host withholds must not cost the others
                control.write_text(f"+{name}")


def _remove_tree(top: Path, *, kill: bool) -> bool:
    """One attempt; True when `top` is gone."""
    for directory in [d for d in top.iterdir() if d.is_dir()]:
        if kill:
            _kill_members(directory)
        with contextlib.suppress(OSError):
            directory.rmdir()
    with contextlib.suppress(OSError):
        top.rmdir()
    return not top.is_dir()


def _kill_members(directory: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in (directory / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
