"""Isolation of a container: all that it may see and do. Law: decided here, and nowhere else.

No network, no capability but those of `defaults.CAPABILITIES`, no new privileges, the daemon's own seccomp filter,
memory without swap, processes and CPU by limits. PID 1 is our supervisor, which no signal from within can end; the
daemon's log keeps nothing of what it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docker.types import LogConfig, Ulimit
from docker.types import Mount as DockerMount

from muster.errors import SandboxStartError
from muster.sandbox.defaults import BASE_ENV, CAPABILITIES, SHARED_MEMORY_BYTES
from muster.sandbox.docker.daemon import Client
from muster.sandbox.docker.scripts import SUPERVISOR
from muster.types import Limits

OPEN_FILES = 16_384
USER_PROCESSES = 16_384  # of one user on the whole host; `pids` is the sandbox's own limit

_ROOT_ENV = ("HOME", "USER")  # of root; the daemon and the shell find those of others


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """`source` is a path on the daemon's machine."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """All that makes a sandbox's container."""

    image: str
    labels: Mapping[str, str]
    limits: Limits
    network: str = "none"
    workdir: str = "/"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    binds: tuple[Bind, ...] = ()


def network(limits: Limits) -> str:
    """The network for what a task asks. Raises `SandboxStartError`: a container's network cannot be filtered."""
    if not limits.egress:
        return "none"
    if limits.egress == ("*",):
        return "bridge"
    raise SandboxStartError(
        f"the docker backend cannot allow {', '.join(limits.egress)} alone: use the namespace backend, or egress *",
        {"egress": list(limits.egress)},
    )


def create(api: Client, it: Container) -> str:
    """Create it, stopped. Returns its id. Raises SDK errors."""
    limits = it.limits
    host = api.create_host_config(
        network_mode=it.network,
        cap_drop=["ALL"],
        cap_add=list(CAPABILITIES),
        security_opt=["no-new-privileges"],
        log_config=LogConfig(type="none"),
        pids_limit=limits.pids,
        nano_cpus=None if limits.cpus is None else round(limits.cpus * 1e9),
        shm_size=SHARED_MEMORY_BYTES,
        ulimits=[Ulimit(name=name, soft=limit, hard=limit) for name, limit in _ulimits(limits).items()],
        mounts=[DockerMount(b.target, str(b.source), type="bind", read_only=not b.writable) for b in it.binds],
        mem_limit=limits.memory_bytes,
        memswap_limit=limits.memory_bytes,  # memory and swap together: swap must not stretch the limit
    )
    made: dict[str, Any] = api.create_container(
        it.image,
        list(SUPERVISOR),
        entrypoint=[],
        user="0",
        stdin_open=True,
        working_dir=it.workdir,
        hostname="sandbox",
        environment={**{k: v for k, v in BASE_ENV.items() if k not in _ROOT_ENV}, **it.env},
        labels=dict(it.labels),
        healthcheck={"test": ["NONE"]},  # an image's own check would run beside ours
        host_config=host,
    )
    return str(made["Id"])


def _ulimits(limits: Limits) -> dict[str, int]:
    """Those that a daemon sets if we do not, to what may be more than it is allowed; and the size of one file."""
    usual = {"nofile": OPEN_FILES, "nproc": USER_PROCESSES}
    return usual if limits.disk_bytes is None else {**usual, "fsize": limits.disk_bytes}


def exec_env(user: str) -> dict[str, str]:
    return {name: BASE_ENV[name] for name in _ROOT_ENV} if user in ("", "0", "root") else {}
