"""An in-memory sandbox backend on the virtual clock, for the simulator and for tests.

    prepare ─► Snapshot (an id; files live in the backend) ─► fork ─► run: a few commands over a dict of files

Law: deterministic; time passes only through `muster.clock`, chance only through the generator passed in. It keeps
the sandbox contract as far as a dict can. Knows echo, cat, ls, pwd, cd, mkdir, touch, rm, mv, cp, test, sleep (also
with `&`: the only thing that runs in the background), true, false, export, NAME=value, exit, bash FILE, and `destroy`,
with which a simulated model ends its sandbox. What is kept lives in a `FakeDisk`, which a test or the simulator hands
on to the next backend, as a machine would.
Syntax: words with quotes and $NAME, `;`, newline, `&&`, `||`, `>` and `>>`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np

from muster import clock
from muster.errors import SandboxError, SandboxLost, SandboxStartError
from muster.lab.fakes.shell import Destroyed, Ended, FakeShell, Files, Interpreter
from muster.sandbox.port import MAIN, Counters, Mount, Result, Snapshot
from muster.types import ImageSpec, Limits

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeTiming:
    """Seconds that each call takes."""

    prepare_s: float = 0.001
    fork_s: float = 0.01
    command_s: float = 0.001
    snapshot_s: float = 0.005
    close_s: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeFaults:
    """Probability of each fault: per fork, and per command."""

    start_failure: float = 0.0
    loss: float = 0.0  # the sandbox vanishes from outside in mid-command
    hang: float = 0.0  # the command takes until its time-out


@dataclass(frozen=True, slots=True)
class _State:
    files: Files
    shell: FakeShell


@dataclass(slots=True)
class FakeDisk:
    """Disk on which kept states outlive their backend. `kept.clear()` is the end of the machine."""

    kept: dict[str, tuple[Snapshot, _State]] = field(default_factory=dict[str, "tuple[Snapshot, _State]"])
    made: int = 0


class FakeBackend:
    """Implements `sandbox.port.SandboxBackend`.

    Example: `backend = FakeBackend(FakeTiming(), FakeFaults(loss=0.01), np.random.default_rng(7))`
    """

    def __init__(
        self,
        timing: FakeTiming | None = None,
        faults: FakeFaults | None = None,
        rng: np.random.Generator | None = None,
        disk: FakeDisk | None = None,
    ) -> None:
        self.timing = timing or FakeTiming()
        self.faults = faults or FakeFaults()
        self.disk = disk or FakeDisk()
        self._rng = rng if rng is not None else np.random.default_rng(0)
        self._states: dict[str, _State] = {}
        self._live: dict[str, FakeSandbox] = {}
        self._numbers = itertools.count()
        self.injected: Counter[str] = Counter()

    async def prepare(self, image: ImageSpec) -> Snapshot:
        await clock.sleep(self.timing.prepare_s)
        workdir = image.workdir or "/app"
        id = f"image-{image.dockerfile}-{workdir}-{sorted(image.env.items())}"
        files = Files(directories={"/", "/app", "/tmp", "/root", workdir})
        self._states.setdefault(id, _State(files, FakeShell(cwd=workdir, variables=dict(image.env))))
        return Snapshot(id=id, workdir=workdir, env=dict(image.env))

    async def fork(
        self,
        snapshot: Snapshot,
        *,
        limits: Limits,
        label: str,
        mounts: tuple[Mount, ...] = (),
        toolchain: Snapshot | None = None,
    ) -> FakeSandbox:
        await clock.sleep(self.timing.fork_s)
        if self.happens("start_failure", self.faults.start_failure):
            raise SandboxStartError(f"{label}: injected")
        state = self._state(snapshot)
        files = state.files.copy()
        if toolchain is not None:
            files.take_over(self._state(toolchain).files, SYSTEM)
        for mount in mounts:
            files.add_host(mount.source, mount.target)
        # as in the real one: without shell state, only the environment is left
        shell = (
            state.shell.copy()
            if snapshot.shell_state
            else FakeShell(cwd=snapshot.workdir, variables=dict(snapshot.env))
        )
        sandbox = FakeSandbox(self, f"{label}#{next(self._numbers)}", snapshot, files, shell)
        self._live[sandbox.id] = sandbox
        return sandbox

    async def restore(self, id: str) -> Snapshot | None:
        found = self.disk.kept.get(id)
        return found[0] if found is not None else None

    async def discard(self, snapshot: Snapshot) -> None:
        self.disk.kept.pop(snapshot.id, None)
        if not snapshot.id.startswith("image-"):
            self._states.pop(snapshot.id, None)

    async def close(self) -> None:
        for sandbox in list(self._live.values()):
            await sandbox.close()

    @property
    def live(self) -> int:
        return len(self._live)

    @property
    def snapshots(self) -> int:
        """States held, images included; kept ones are on the disk."""
        return len(self._states)

    def file(self, snapshot: Snapshot, path: str) -> bytes | None:
        """Content of a file in a frozen state; None if there is none. A fake verifier grades by it."""
        return self._state(snapshot).files.content.get(path)

    def happens(self, fault: str, probability: float) -> bool:
        if probability > 0 and float(self._rng.random()) < probability:
            self.injected[fault] += 1
            return True
        return False

    def freeze(self, files: Files, shell: FakeShell, origin: Snapshot, *, keep: bool = False) -> Snapshot:
        state = _State(files.copy(), shell.copy())
        if keep:
            self.disk.made += 1
            snapshot = replace(origin, id=f"kept-{self.disk.made}", shell_state="kept")
            self.disk.kept[snapshot.id] = (snapshot, state)
        else:
            snapshot = replace(origin, id=f"snapshot-{next(self._numbers)}", shell_state="kept")
            self._states[snapshot.id] = state
        return snapshot

    def _state(self, snapshot: Snapshot) -> _State:
        if snapshot.id in self._states:
            return self._states[snapshot.id]
        return self.disk.kept[snapshot.id][1]

    def forget(self, sandbox: FakeSandbox) -> None:
        del self._live[sandbox.id]


class _Patience:
    """Limits of a running command: its time-out, or `silence_s` without a word."""

    def __init__(self, timeout_s: float, silence_s: float | None) -> None:
        self._deadline = clock.now() + timeout_s
        self._silence_s = silence_s
        self._last_s = clock.now()
        self.timeout: asyncio.Timeout | None = None

    @property
    def silence_is_next(self) -> bool:
        return self._silence_s is not None and self._last_s + self._silence_s < self._deadline

    @property
    def left_s(self) -> float:
        ends = self._deadline if self._silence_s is None else min(self._deadline, self._last_s + self._silence_s)
        return max(0.0, ends - clock.now())

    def heard(self) -> None:
        """Start its silence anew: it wrote something."""
        self._last_s = clock.now()
        if self.timeout is not None:
            self.timeout.reschedule(asyncio.get_running_loop().time() + self.left_s)


class FakeSandbox:
    """Implements `sandbox.port.Sandbox`."""

    def __init__(self, backend: FakeBackend, id: str, origin: Snapshot, files: Files, shell: FakeShell) -> None:
        self.id = id
        self._backend = backend
        self._origin = origin
        self._files = files
        self._shells = {MAIN: shell}
        self._lost: SandboxLost | None = None
        self._closed = False
        self._busy_s = 0.0
        self._background_until = 0.0

    async def run(
        self, command: str, timeout_s: float, *, silence_s: float | None = None, session: str = MAIN
    ) -> Result:
        self._require_live()
        patience = _Patience(timeout_s, silence_s)
        started = clock.now()
        if self._backend.happens("loss", self._backend.faults.loss):
            await clock.sleep(self._backend.timing.command_s)
            raise self._lose("vanished", by_agent=False)
        if self._backend.happens("hang", self._backend.faults.hang):
            await clock.sleep(patience.left_s)
            return Result(
                output="",
                exit_code=None,
                duration_s=clock.now() - started,
                timed_out=True,
                silent=patience.silence_is_next,
            )
        shell = self._shells.setdefault(session, self._fresh_shell())
        interpreter = Interpreter(self._files, shell, patience.heard, self._in_background)
        exit_code: int | None = None
        timed_out = restarted = False
        try:
            async with clock.timeout(patience.left_s) as patience.timeout:
                await clock.sleep(self._backend.timing.command_s)
                exit_code = await interpreter.run(command)
        except TimeoutError:
            timed_out = True
        except Ended as ended:
            exit_code, restarted = ended.code, True
            self._shells[session] = self._fresh_shell()
        except Destroyed:
            raise self._lose("destroyed", by_agent=True) from None
        duration_s = clock.now() - started
        self._busy_s += duration_s
        return Result(
            output=interpreter.output,
            exit_code=exit_code,
            duration_s=duration_s,
            timed_out=timed_out,
            silent=timed_out and patience.silence_is_next,
            shell_restarted=restarted,
            counters=Counters(cpu_s=duration_s, disk_bytes=self._files.size_bytes),
        )

    async def read(self, path: str) -> bytes:
        self._require_live()
        return self._files.read(path)

    async def write(self, path: str, data: bytes) -> None:
        self._require_live()
        self._files.write(path, data)

    async def snapshot(self) -> Snapshot:
        self._require_live()
        await clock.sleep(self._backend.timing.snapshot_s)
        self._origin = self._backend.freeze(self._files, self._shells[MAIN], self._origin)
        self._shells = {MAIN: self._shells[MAIN]}
        self._background_until = 0.0
        return self._origin

    async def keep(self) -> Snapshot | None:
        self._require_live()
        if clock.now() < self._background_until or len(self._shells) > 1:
            return None
        await clock.sleep(self._backend.timing.snapshot_s)
        self._require_live()  # the simulator may have killed it meanwhile
        self._origin = self._backend.freeze(self._files, self._shells[MAIN], self._origin, keep=True)
        return self._origin

    async def alive(self) -> bool:
        return self._lost is None and not self._closed

    async def close(self) -> Counters:
        if not self._closed:
            self._closed = True
            self._backend.forget(self)
            await clock.sleep(self._backend.timing.close_s)
        return Counters(cpu_s=self._busy_s, disk_bytes=self._files.size_bytes)

    def _in_background(self, duration_s: float) -> None:
        self._background_until = max(self._background_until, clock.now() + duration_s)

    def _fresh_shell(self) -> FakeShell:
        return FakeShell(cwd=self._origin.workdir, variables=dict(self._origin.env))

    def lose(self) -> None:
        """A test or the simulator kills it from outside."""
        self._lose("killed from outside", by_agent=False)

    def _lose(self, message: str, *, by_agent: bool) -> SandboxLost:
        self._lost = SandboxLost(f"{self.id}: {message}", by_agent=by_agent, evidence={"injected": not by_agent})
        return self._lost

    def _require_live(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._closed:
            raise SandboxError(f"{self.id} is closed")
