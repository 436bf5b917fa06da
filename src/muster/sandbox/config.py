"""Configuration of sandboxes. Law: values only; each field says its unit and its reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from muster.types import Limits

MIB = 1024 * 1024


def _default_state_dir() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "muster" / "sandboxes"


class SandboxConfig(BaseModel):
    """The sandbox backend and its pool.

    Example: `SandboxConfig(slots=32, warm=8)`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: Literal["namespace", "docker"] = Field(
        default="namespace", description="bubblewrap on this machine, or containers of a Docker or Podman socket"
    )
    docker_host: str | None = Field(
        default=None,
        description="socket of the docker backend, unix:///… or tcp://…; None: DOCKER_HOST, or Docker's own",
    )
    docker_base_image: str = Field(
        default="debian:bookworm-slim",
        description="the docker backend's image for tasks that name none; it needs bash",
    )
    images: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="what FROM means: pattern of image names to a directory or tar with a root file system, or 'host'; "
        "the first that matches; any other name is this machine's own /usr",
    )
    egress: Literal["task", "none"] = Field(
        default="task", description="network: what the task asks for, through the allow-listing proxy, or none at all"
    )
    egress_networks: tuple[str, ...] = Field(
        default=(),
        description="addresses or networks (10.1.0.0/16) beyond the public ones that tasks may reach by the names they "
        "list: your own package mirror, say; loopback here opens this machine",
    )
    state_dir: Path = Field(
        default_factory=_default_state_dir,
        description="images and writable layers; a real file system (overlayfs cannot write on overlayfs)",
    )
    slots: int = Field(default=64, ge=1, description="agent sandboxes alive at once, warm ones included")
    warm: int = Field(default=8, ge=0, description="forks kept ready for the snapshots that come next")
    verifier_slots: int = Field(
        default=8, ge=1, description="sandboxes for verification alone, so that it never waits behind agents"
    )
    slice_s: float | None = Field(
        default=None,
        gt=0,
        description="taking turns: who had a sandbox so much longer than one that waits is frozen between two turns, "
        "and waits in its place; schedule.slots may then be larger than slots; None: each keeps its own to the end",
    )
    memory_bytes: int | None = Field(default=512 * MIB, description="where the task sets none; None: no limit")
    pids: int | None = Field(default=128, description="where the task sets none; None: no limit")
    disk_bytes: int | None = Field(default=256 * MIB, description="where the task sets none; None: no limit")
    cpus: float | None = Field(default=None, description="where the task sets none; None: no limit")
    free_disk_bytes: int = Field(
        default=1024 * MIB, description="host disk that sandboxes leave free, whatever their own limits say"
    )
    disk_quota: Literal["polled", "exact"] = Field(
        default="polled",
        description="polled: measured while a command runs, may overshoot; exact: a file system of its own "
        "for each writable layer (root only)",
    )
    boots_per_s: float | None = Field(default=None, gt=0, description="starts a second at most; None: no limit")
    pool_memory_bytes: int | None = Field(
        default=None, description="memory limits of all agent sandboxes together; None: no limit"
    )
    max_lifetime_s: float | None = Field(
        default=None, gt=0, description="a sandbox older than this is killed, as lost by our doing; None: no limit"
    )
    keep_days: float = Field(
        default=7.0,
        gt=0,
        description="how long the kept state of an attempt waits for its run to be resumed; after that it is removed, "
        "and the attempt begins at the beginning",
    )
    output_cap_bytes: int = Field(
        default=8192, ge=64, description="output of one command kept for the model: half head, half tail"
    )
    start_timeout_s: float = Field(default=30.0, gt=0, description="from fork until bash answers")
    kill_grace_s: float = Field(
        default=0.25, gt=0, description="after a time-out: how long the shell may take to answer again"
    )

    def complete(self, limits: Limits) -> Limits:
        """`limits` with the defaults where it sets none."""
        return Limits(
            cpus=limits.cpus if limits.cpus is not None else self.cpus,
            memory_bytes=limits.memory_bytes if limits.memory_bytes is not None else self.memory_bytes,
            disk_bytes=limits.disk_bytes if limits.disk_bytes is not None else self.disk_bytes,
            pids=limits.pids if limits.pids is not None else self.pids,
            egress=limits.egress if self.egress == "task" else (),
        )


class DeadlineConfig(BaseModel):
    """Seconds that a backend may take beyond what a call itself asks for. Generous: they are for what hangs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start_s: float = Field(default=120.0, gt=0, description="fork, the image's service included")
    run_s: float = Field(default=30.0, gt=0, description="a command, beyond its own time-out")
    file_s: float = Field(default=60.0, gt=0, description="read or write a file")
    snapshot_s: float = Field(default=120.0, gt=0, description="freeze a sandbox")
    close_s: float = Field(default=60.0, gt=0, description="close a sandbox; what takes longer is left to the reaper")
    build_s: float = Field(default=60.0, gt=0, description="prepare an image, beyond its build time-out")
