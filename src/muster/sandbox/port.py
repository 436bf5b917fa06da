"""The sandbox port: fork a frozen state, run commands in it, freeze it again.

    prepare(image) ─► Snapshot ─fork─► Sandbox ─run…─► snapshot() ─► Snapshot ─fork─► …
                                               keep() ─► Snapshot, which a later process restores by its id

A `Sandbox` belongs to one user at a time, who may have several sessions (shells) in it, each with one command at a
time. Every call has a deadline enforced from outside; a call on a dead sandbox raises `SandboxLost` with the
evidence of who killed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from muster.types import HealthCheck, ImageSpec, Limits

MAIN = "main"
"""The session whose shell state a snapshot keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The image's own main process: started with each fork, in the files of that fork, checked healthy.

    `required`: a fork whose service is not healthy fails to start. A verifier's fork of what an agent left behind
    waits for it as well, but goes on without it.
    """

    command: tuple[str, ...]  # argv, from ENTRYPOINT and CMD
    check: HealthCheck
    user: str = ""  # the image's own USER, whoever the agent is; empty: root
    required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A frozen state: read-only layers (base first) and the shell state to start from. Never changes."""

    id: str
    layers: tuple[Path, ...] = ()
    workdir: str = "/"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    shell_state: str = ""  # bash source that restores variables, functions and options
    user: str = ""  # name or number, with ":group" if wanted; empty: root
    service: Service | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host path bound into a sandbox."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters of a sandbox, over its life or during one command; attribution reads them. None: nobody can tell."""

    cpu_s: float | None = None
    peak_memory_bytes: int | None = None
    oom_kills: int | None = None
    pids_refused: int | None = None
    disk_bytes: int | None = None  # written and still there: a level, not a difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a command. A time-out or a kill is a result, not an error: the model sees it and goes on."""

    output: str  # stdout and stderr as they came, head and tail kept
    exit_code: int | None  # None: no exit code was seen (time-out, or the shell itself died)
    duration_s: float
    timed_out: bool = False
    silent: bool = False  # timed out because it wrote nothing for too long
    out_of_memory: bool = False
    shell_restarted: bool = False  # the command ended the shell; a fresh one answers, in the same files
    omitted_bytes: int = 0  # cut from the middle of the output
    counters: Counters = field(default_factory=Counters)  # of the whole sandbox while the command ran


class Sandbox(Protocol):
    """A live environment. Errors: `SandboxLost`, `SandboxError`."""

    id: str

    async def run(
        self, command: str, timeout_s: float, *, silence_s: float | None = None, session: str = MAIN
    ) -> Result:
        """Run bash source in the shell of `session`, which starts at its first use.

        `silence_s`: end the command when it writes nothing for that long. Cancelling the call interrupts the command,
        as Ctrl-C would; the shell lives on, with its variables. What runs in the background goes on between commands.
        """
        ...

    async def read(self, path: str) -> bytes:
        """Raises `FileNotFoundError` when there is no such file in the sandbox."""
        ...

    async def write(self, path: str, data: bytes) -> None: ...

    async def snapshot(self) -> Snapshot:
        """Freeze the files and the state of the main shell. Every process in the sandbox is dead afterwards; a fresh
        shell answers, and the image's service runs again."""
        ...

    async def keep(self) -> Snapshot | None:
        """Freeze it as `snapshot` does, for `SandboxBackend.restore`, unless the agent would notice.

        None, and nothing is done: something of it runs beside the main shell, or is held in memory alone, and would not
        be there afterwards; or no new shell would start; or this backend cannot keep it.
        """
        ...

    async def alive(self) -> bool: ...

    async def close(self) -> Counters:
        """Kill everything and give back all it held. Idempotent; never waits for a graceful stop."""
        ...


class SandboxBackend(Protocol):
    """Makes sandboxes. Errors: `ImageError` from prepare, `SandboxStartError` from fork."""

    async def prepare(self, image: ImageSpec) -> Snapshot:
        """Build the image, or find it built: same content, same snapshot."""
        ...

    async def fork(
        self,
        snapshot: Snapshot,
        *,
        limits: Limits,
        label: str,
        mounts: tuple[Mount, ...] = (),
        toolchain: Snapshot | None = None,
    ) -> Sandbox:
        """`toolchain`: bind /usr, /bin, /sbin and /lib* of that state, read-only, over those of `snapshot`: a verifier
        works with the tools of the image, whatever an agent did to them."""
        ...

    async def restore(self, id: str) -> Snapshot | None:
        """The state of that id that `Sandbox.keep` made, here or in an earlier process on this machine.

        None: it was discarded, its time is over, or it went with its machine.
        """
        ...

    async def discard(self, snapshot: Snapshot) -> None:
        """Forget a snapshot that `Sandbox.snapshot` or `keep` made. Layers that images share stay."""
        ...

    async def close(self) -> None:
        """Close every sandbox and remove all that is neither a cached image nor kept."""
        ...
