"""`muster bench sandbox`: starts, commands, snapshots and leaks of the backends, beside plain Docker, in one run.

    namespace, docker, podman (our backends) · docker plain, podman plain (run, exec for each command, commit, rm)
    for each repeat: one life of a sandbox on every side in turn ─► p50, p90, ratios to namespace
    then many forks of the namespace backend, and a killed controller ─► what is left: nothing

Law: the sides take turns, so that a busy moment hits all. Times are what the caller waits for; our backends clean up
in the background, which their starts per second pay for. A daemon that is not given is a private one (see `daemons`).
"""

from __future__ import annotations

import contextlib
import math
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from muster import clock
from muster.errors import ConfigError
from muster.lab.bench.sandbox import daemons, leaks
from muster.lab.bench.sandbox.sides import (
    BUILTIN,
    EXTERNAL,
    FORK,
    OPERATIONS,
    STARTS,
    BackendSide,
    PlainSide,
    Side,
)
from muster.lab.result import BenchResult, Target, Value
from muster.sandbox.config import SandboxConfig
from muster.sandbox.docker.backend import DockerBackend
from muster.sandbox.namespace.backend import NamespaceBackend

BACKENDS = ("namespace", "docker", "podman")
FORK_P50_MS = 25.0
FORK_SPEEDUP = 10.0
EXEC_SPEEDUP = 15.0
_STARTS = 12  # of each side, for starts per second
_PLAIN = "docker plain"

Seconds = dict[str, dict[str, list[float]]]
"""By side, by operation."""


def run_sandbox_bench(
    *,
    repeats: int,
    forks: int,
    backends: Sequence[str] = BACKENDS,
    docker_host: str | None = None,
    say: Callable[[str], None],
) -> BenchResult:
    """Measure. `docker_host`: use this daemon for the docker side. `say` tells which side is left out, and why.

    Raises `ConfigError`, `SandboxStartError`, `ImageError`.
    """
    unknown = sorted(set(backends) - set(BACKENDS))
    if unknown:
        raise ConfigError(f"--backend {unknown[0]}: the sides are {', '.join(BACKENDS)}")
    with contextlib.ExitStack() as machines:
        hosts, left_out = _daemons([name for name in backends if name != "namespace"], docker_host, machines)
        for name, reason in left_out.items():
            say(f"{name} is left out: {reason}")
        result = clock.run(_bench(repeats, forks, hosts, "namespace" in backends))
    return replace(result, notes={**result.notes, "left_out": left_out})


def _daemons(
    names: Sequence[str], given: str | None, machines: contextlib.ExitStack
) -> tuple[dict[str, str], dict[str, str]]:
    """The `docker_host` of each that runs, and why the others do not."""
    hosts: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name in names:
        if given is not None and name == "docker":
            hosts[name] = given
            continue
        try:
            hosts[name] = machines.enter_context(daemons.KINDS[name]())
        except daemons.Unavailable as reason:
            left_out[name] = str(reason)
        else:
            daemons.import_base(hosts[name])
    return hosts, left_out


async def _bench(repeats: int, forks: int, hosts: Mapping[str, str], namespace: bool) -> BenchResult:
    notes: dict[str, Any] = {"repeats": repeats, "forks": forks, "kernel": platform.release()}
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as scratch:
        sides = _sides(Path(scratch, "state") if namespace else None, hosts)
        try:
            seconds = await _measure(sides, repeats)
        finally:
            for side in sides.values():
                await side.close()
        targets = speed_targets(seconds)
        if namespace and forks:
            closed = await leaks.forks(Path(scratch, "closed"), forks)
            killed = await leaks.killed(Path(scratch, "killed"), forks)
            notes |= {"left_by_forks": asdict(closed), "left_by_kill_9": asdict(killed)}
            targets.append(Target(name=f"left_by_{forks}_forks", value=closed.total, operator="<=", threshold=0))
            targets.append(Target(name="left_by_kill_9", value=killed.total, operator="<=", threshold=0))
    return BenchResult(name="sandbox", rows=rows(seconds), targets=targets, notes=notes)


def _sides(state_dir: Path | None, hosts: Mapping[str, str]) -> dict[str, Side]:
    sides: dict[str, Side] = {}
    if state_dir is not None:
        sides["namespace"] = BackendSide(NamespaceBackend(SandboxConfig(state_dir=state_dir), run="bench"))
    for name, host in hosts.items():
        config = SandboxConfig(docker_host=host)
        sides[name] = BackendSide(DockerBackend(config, run="bench"))
        sides[f"{name} plain"] = PlainSide(
            host, config.docker_base_image, memory_bytes=config.memory_bytes, pids=config.pids
        )
    return sides


async def _measure(sides: Mapping[str, Side], repeats: int) -> Seconds:
    seconds: Seconds = {name: {operation: [] for operation in (*OPERATIONS, STARTS)} for name in sides}
    for side in sides.values():  # warm up
        await side.once()
    for _ in range(repeats):
        for name, side in sides.items():
            for operation, taken in await side.once():
                seconds[name][operation].append(taken)
    for _ in range(min(3, repeats)):
        for name, side in sides.items():
            seconds[name][STARTS].append(await side.starts(_STARTS) / _STARTS)
    return seconds


def rows(seconds: Seconds) -> list[dict[str, Value]]:
    """One for each side and operation. `ratio`: its p50 over that of namespace."""
    return [
        {
            "side": name,
            "operation": operation,
            "p50_ms": _quantile(taken, 0.5) * 1e3,
            "p90_ms": _quantile(taken, 0.9) * 1e3,
            "per_s": 1 / _quantile(taken, 0.5),
            "ratio": _ratio(seconds, name, "namespace", operation),
        }
        for name, operations in seconds.items()
        for operation, taken in operations.items()
    ]


def speed_targets(seconds: Seconds) -> list[Target]:
    """Those whose sides were measured."""
    if "namespace" not in seconds:
        return []
    p50_ms = _quantile(seconds["namespace"][FORK], 0.5) * 1e3
    targets = [Target(name="fork_p50_ms", value=p50_ms, operator="<=", threshold=FORK_P50_MS)]
    if _PLAIN in seconds:
        for name, operation, threshold in (
            ("fork_vs_docker_run", FORK, FORK_SPEEDUP),
            ("exec_builtin_vs_docker_exec", BUILTIN, EXEC_SPEEDUP),
            ("exec_external_vs_docker_exec", EXTERNAL, EXEC_SPEEDUP),
        ):
            speedup = _ratio(seconds, _PLAIN, "namespace", operation)
            targets.append(Target(name=name, value=speedup, operator=">=", threshold=threshold))
    return targets


def _ratio(seconds: Seconds, side: str, over: str, operation: str) -> float:
    if over not in seconds:
        return math.nan
    return _quantile(seconds[side][operation], 0.5) / _quantile(seconds[over][operation], 0.5)


def _quantile(values: Sequence[float], q: float) -> float:
    return float(np.quantile(values, q))
