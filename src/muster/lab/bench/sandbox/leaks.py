"""Leaks of sandboxes: `muster bench sandbox` forks many, and once kills their controller in the middle.

    forks of this process, closed ─► Traces.leftovers: processes, mounts, cgroups, network namespaces, loops, bytes
    forks of a controller of its own ─ kill -9 ─► reap ─► the same

Law: counts what exists, not what the backend believes. A process is known by a unique argument of a command in every
sandbox, a network namespace by its number, all else by the name of the state directory or of its run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, fields
from pathlib import Path

from muster import clock
from muster.sandbox.cgroup import PARENT, Cgroups
from muster.sandbox.config import SandboxConfig
from muster.sandbox.files import usage_bytes
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.namespace.storage.state import reap
from muster.types import ImageSpec, Limits

AT_ONCE = 8
SETTLE_S = 20.0  # background removal is done by then; a leak stays
_TIMEOUT_S = 30.0
_MARK = "muster-bench-leak"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Counts, and bytes on disk. All zero: nothing is left."""

    processes: int = 0
    mounts: int = 0
    cgroups: int = 0
    network_namespaces: int = 0
    loop_devices: int = 0
    bytes: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, f.name) for f in fields(self))


@dataclass(slots=True)
class Traces:
    """Traces by which to know what came from sandboxes below `state_dir`."""

    state_dir: Path
    mark: str
    runs: set[str] = field(default_factory=set[str])
    namespaces: set[str] = field(default_factory=set[str])

    def leftovers(self) -> Leftovers:
        processes = [p for p in Path("/proc").glob("[0-9]*") if _names(p, self.mark) or _names(p, str(self.state_dir))]
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        hierarchies = dict.fromkeys(Cgroups.detect().hierarchies.values())
        runs = self.state_dir / "runs"
        held = {_namespace(p) for p in Path("/proc").glob("[0-9]*")}
        return Leftovers(
            processes=len(processes),
            mounts=mounts.count(str(self.state_dir)),
            cgroups=sum((h / PARENT / run).exists() for h in hierarchies for run in self.runs),
            network_namespaces=sum(n in held or n in mounts for n in self.namespaces),
            loop_devices=sum(_backs(loop, self.state_dir) for loop in Path("/sys/block").glob("loop*")),
            bytes=sum(usage_bytes(p) for p in runs.iterdir() if p.is_dir()) if runs.is_dir() else 0,
        )

    async def settled(self) -> Leftovers:
        """Once nothing is left, or after `SETTLE_S`."""
        deadline = clock.now() + SETTLE_S
        while (left := await asyncio.to_thread(self.leftovers)).total and clock.now() < deadline:
            await clock.sleep(0.1)
        return left


async def forks(state_dir: Path, count: int) -> Leftovers:
    """Open and close `count` sandboxes, each with a process in the background and a file; close; count."""
    traces = Traces(state_dir=state_dir, mark=f"{_MARK}-{clock.now():.6f}")
    async for namespace in _open_and_close(traces, count):
        traces.namespaces.add(namespace)
    return await traces.settled()


async def killed(state_dir: Path, count: int) -> Leftovers:
    """The same in a process of its own, which is killed in the middle; then `reap`; count."""
    traces = Traces(state_dir=state_dir, mark=f"{_MARK}-{clock.now():.6f}")
    command = [sys.executable, "-m", __name__, str(state_dir), traces.mark, str(count)]
    victim = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert victim.stdout is not None
    for _ in range(max(1, count // 2)):
        line = (await victim.stdout.readline()).decode().strip()
        assert line, "the controller ended by itself"
        traces.namespaces.add(line)
    traces.runs = {p.name for p in (state_dir / "runs").iterdir() if p.is_dir()}
    assert traces.leftovers().total, "sandboxes were alive"
    victim.send_signal(signal.SIGKILL)
    await victim.communicate()
    await asyncio.to_thread(reap, state_dir)
    return await traces.settled()


async def _open_and_close(traces: Traces, count: int) -> AsyncGenerator[str]:
    """Yields the network namespace of each sandbox."""
    backend = NamespaceBackend(SandboxConfig(state_dir=traces.state_dir), run="leaks")
    traces.runs |= {p.name for p in (traces.state_dir / "runs").iterdir() if p.is_dir()}
    image = await backend.prepare(ImageSpec())
    turns = asyncio.Semaphore(AT_ONCE)

    async def one() -> str:
        async with turns:
            sandbox = await backend.fork(image, limits=Limits(), label="leak")
            script = f"(exec -a {traces.mark} sleep 1000) & echo data > /tmp/file; readlink /proc/self/ns/net"
            said = await sandbox.run(script, _TIMEOUT_S)
            await sandbox.close()
            return said.output.strip()

    try:
        tasks = [asyncio.ensure_future(one()) for _ in range(count)]
        for task in tasks:
            yield await task
    finally:
        await backend.close()


def _names(process: Path, text: str) -> bool:
    with contextlib.suppress(OSError):
        return text.encode() in (process / "cmdline").read_bytes() and int(process.name) != os.getpid()
    return False


def _namespace(process: Path) -> str:
    with contextlib.suppress(OSError):
        return str((process / "ns" / "net").readlink())
    return ""


def _backs(loop: Path, directory: Path) -> bool:
    with contextlib.suppress(OSError):
        return (loop / "loop" / "backing_file").read_text(encoding="utf-8").startswith(str(directory))
    return False


async def _victim(state_dir: Path, mark: str, count: int) -> None:
    async for namespace in _open_and_close(Traces(state_dir=state_dir, mark=mark), count):
        sys.stdout.write(f"{namespace}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    clock.run(_victim(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
