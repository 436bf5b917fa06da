"""Private Docker and Podman daemons: their own files, socket and cgroups, no network, gone without a trace.

    with dockerd() as host: …      with podman() as host: …      with both: a benchmark, or a test session

Law: needs root and the daemon's programs, and says so when it cannot (`Unavailable`). A daemon dies with the thread
that started it; what a killed owner left behind is removed by the next one, which finds it by its directory's name.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import docker

from muster import clock
from muster.lab.bench.sandbox.rootfs import build_tar
from muster.sandbox.cgroup import ROOT
from muster.sandbox.files import remove_tree

BASE = "debian:bookworm-slim"
"""What the image of `import_base` is called: the docker backend's own default, which it stands for."""
START_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 15.0
_POLL_S = 0.05
_PREFIX = "muster-daemon-"
_OPEN_FILES = 16_384  # a host may not let a container have more than it has itself
_PODMAN_SETTINGS = f"""
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "none"
[containers]
default_ulimits = ["nofile={_OPEN_FILES}:{_OPEN_FILES}", "nproc={_OPEN_FILES}:{_OPEN_FILES}"]
"""

Daemon = Callable[[], contextlib.AbstractContextManager[str]]


class Unavailable(Exception):
    """Error of a daemon that cannot be started here; says why."""


@contextlib.contextmanager
def dockerd() -> Generator[str]:
    """A Docker daemon; gives its `docker_host`. Raises `Unavailable`."""
    _require("dockerd", "containerd", "runc")
    with _directory() as place:
        command = [
            *("dockerd", "--host", f"unix://{place}/socket", "--pidfile", f"{place}/pid"),
            *("--data-root", f"{place}/data", "--exec-root", f"{place}/exec", "--cgroup-parent", f"/{place.name}"),
            *("--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none"),
            *("--default-ulimit", f"nofile={_OPEN_FILES}:{_OPEN_FILES}", "--shutdown-timeout", "1"),
        ]
        with _running(command, place, {}):
            try:
                yield f"unix://{place}/socket"
            finally:  # asked to end, it would first wait for its containers to end by themselves
                _kill_members(place)


@contextlib.contextmanager
def podman() -> Generator[str]:
    """A Podman service; gives its `docker_host`. Raises `Unavailable`."""
    _require("podman", "conmon", "runc")
    with _directory() as place:
        (place / "containers.conf").write_text(_PODMAN_SETTINGS, encoding="utf-8")
        environment = {"CONTAINERS_CONF": f"{place}/containers.conf"}
        podman = [
            *("podman", "--root", f"{place}/data", "--runroot", f"{place}/run", "--tmpdir", f"{place}/tmp"),
            *("--storage-driver", "overlay"),
        ]
        with _running([*podman, "system", "service", "--time", "0", f"unix://{place}/socket"], place, environment):
            try:
                yield f"unix://{place}/socket"
            finally:
                remove = [*podman, "rm", "--all", "--force", "--time", "0"]
                subprocess.run(remove, env={**os.environ, **environment}, capture_output=True, check=False)


KINDS: Mapping[str, Daemon] = {"docker": dockerd, "podman": podman}


def import_base(host: str) -> None:
    """Give a daemon the image `BASE`, made of this machine's own programs: a private one cannot pull."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.closing(docker.APIClient(host, version="auto")) as api:
        archive = build_tar(Path(scratch, "root.tar"), Path(scratch, "root"))
        untyped: Any = api  # these methods have no types
        said: str = untyped.import_image(src=str(archive), repository="muster-import", tag="latest")
        # podman takes the tag for a comment; both say the id
        repository, tag = BASE.split(":")
        untyped.tag(json.loads(said.strip().splitlines()[-1])["status"], repository, tag)
        untyped.remove_image("muster-import:latest")


def _require(*programs: str) -> None:
    if os.geteuid() != 0:
        raise Unavailable(f"{programs[0]} of our own needs root")
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        raise Unavailable(f"not installed: {', '.join(missing)}")


@contextlib.contextmanager
def _directory() -> Generator[Path]:
    """A directory that carries the owner's process id; a short path, since it holds sockets."""
    for old in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = re.match(rf"{_PREFIX}(\d+)-", old.name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            _clean(old)
    place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        yield place
    finally:
        _clean(place)


@contextlib.contextmanager
def _running(command: Sequence[str], place: Path, environment: Mapping[str, str]) -> Generator[None]:
    log = place / "log"
    # the owner's death is its own; a daemon never runs on by itself
    tied = ["setpriv", "--pdeathsig", "KILL", *command] if shutil.which("setpriv") else command
    with log.open("wb") as out:
        process = subprocess.Popen(
            tied, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **environment}
        )
    try:
        deadline = clock.now() + START_TIMEOUT_S
        while not (place / "socket").exists():
            if process.poll() is not None or clock.now() > deadline:
                last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                raise Unavailable(f"{command[0]} does not start here: {' '.join(last) or 'no answer'}")
            clock.block(_POLL_S)
        yield
    finally:
        process.terminate()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _clean(place: Path) -> None:
    """End every process that names the directory or is in its cgroups, and remove mounts, cgroups and files."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(process.name) != os.getpid() and f"{place}/".encode() in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
    _kill_members(place)
    for target in sorted(_mounts_below(place), reverse=True):
        subprocess.run(["umount", "--lazy", target], capture_output=True, check=False)
    for group in _groups(place):
        for directory in sorted((d for d in group.rglob("*") if d.is_dir()), reverse=True):
            _remove_group(directory)
        _remove_group(group)
    for shared in ROOT.glob("*/libpod_parent"):  # podman makes it for its monitors; another one's is not empty
        for directory in (*shared.glob("conmon"), shared):
            with contextlib.suppress(OSError):
                directory.rmdir()
    remove_tree(place)


def _groups(place: Path) -> list[Path]:
    return [group for group in ROOT.glob(f"*/{place.name}") if group.is_dir()]


def _kill_members(place: Path) -> None:
    for file in (file for group in _groups(place) for file in group.rglob("cgroup.procs")):
        with contextlib.suppress(OSError):
            for member in file.read_text().split():
                os.kill(int(member), signal.SIGKILL)


def _mounts_below(place: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return [target for line in lines if (target := line.split(" ")[4]).startswith(f"{place}/")]


def _remove_group(directory: Path) -> None:
    """A dying process counts for a moment."""
    for _ in range(40):
        try:
            directory.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            clock.block(_POLL_S)
        else:
            return
