"""Labels on everything that we make at a daemon, and the removal of what dead controllers left.

    container, volume, snapshot image: muster.controller = <boot>/<pid namespace>/<pid>/<start>, muster.app.run, …
    kept image:                        muster.kept = <directory>, where a file says until when it stays (`kept`)
    cached image:                      muster.image = <digest>; it belongs to nobody and stays

Law: a thing is removed only when its controller is known to be dead: same boot and pid namespace, no such process.
Lists are read again after removal: a daemon says yes before it is done, and a removal may race a slow creation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster import clock
from muster.errors import SandboxError
from muster.sandbox.docker.daemon import Client, Daemon, Missing
from muster.sandbox.kept import is_kept

CONTROLLER = "muster.controller"
RUN = "muster.app.run"
NAME = "muster.name"
CREATED = "muster.created"
IMAGE = "muster.image"
KEPT_IN = "muster.kept"
_ROUNDS = 5
_ROUND_PAUSE_S = 0.2

Mine = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Owner of things at a daemon: this process, for `run`."""

    run: str
    controller: str

    @classmethod
    def here(cls, run: str) -> Owner:
        return cls(run=run, controller=_identity(os.getpid()))

    def labels(self, name: str) -> dict[str, str]:
        return {CONTROLLER: self.controller, RUN: self.run, NAME: name, CREATED: f"{clock.now():.0f}", KEPT_IN: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Numbers of things that were removed."""

    containers: int = 0
    volumes: int = 0
    images: int = 0


async def reap(daemon: Daemon) -> Removed:
    """Remove what dead controllers left at this daemon. Raises `SandboxError` when the daemon does not answer."""
    return await remove(daemon, {}, is_dead)


async def remove(daemon: Daemon, having: Mapping[str, str], mine: Mine = lambda _: True) -> Removed:
    """Remove everything with the labels `having` whose controller is `mine`, until none is listed any more."""
    wanted = [CONTROLLER, *(f"{key}={value}" for key, value in having.items())]
    removed = [set[str](), set[str](), set[str]()]
    for _ in range(_ROUNDS):
        listed = await daemon.call("list by label", lambda api: _listed(api, wanted))
        chosen = [[name for name, owner in kind if mine(owner)] for kind in listed]
        if not any(chosen):
            break
        for names, total, delete in zip(chosen, removed, (_container, _volume, _image), strict=True):
            for name in names:
                total.add(name)
                with suppress(SandboxError):  # in use by the next in line, or gone; the list is read again
                    await daemon.call("remove", lambda api, d=delete, n=name: d(api, n))
        await clock.sleep(_ROUND_PAUSE_S if any(chosen[1:]) else 0)
    return Removed(containers=len(removed[0]), volumes=len(removed[1]), images=len(removed[2]))


async def remove_container(daemon: Daemon, container: str) -> None:
    with suppress(Missing):
        await daemon.call("remove", lambda api: _container(api, container))


def is_dead(controller: str) -> bool:
    """Whether that controller ran on this machine and does no more. False for what nobody here can tell."""
    boot, namespace, pid, start = (*controller.split("/"), "", "", "", "")[:4]
    here = _identity(os.getpid()).split("/")
    return bool(start) and [boot, namespace] == here[:2] and _identity(int(pid)) != controller


def _identity(pid: int) -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    try:
        start = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(") ")[2].split()[19]
    except OSError:
        start = "gone"
    return f"{boot}/{namespace}/{pid}/{start}"


def _listed(api: Client, wanted: list[str]) -> tuple[list[tuple[str, str]], ...]:
    """Names with their controllers: containers, volumes, images."""
    filters = {"label": wanted}
    containers: list[dict[str, Any]] = api.containers(all=True, filters=filters)
    volumes: list[dict[str, Any]] = api.volumes(filters=filters)["Volumes"] or []
    images: list[dict[str, Any]] = api.images(all=True, filters=filters)
    return (
        [(c["Id"], c["Labels"][CONTROLLER]) for c in containers],
        [(v["Name"], v["Labels"][CONTROLLER]) for v in volumes],
        [(i["Id"], i["Labels"].get(CONTROLLER, "")) for i in images if not _kept(i)],
    )


def _kept(image: dict[str, Any]) -> bool:
    """A container of a kept image has an empty label in its place, and so has what is committed of it."""
    directory = image["Labels"].get(KEPT_IN, "")
    return bool(directory) and is_kept(Path(directory), "sha256:" + str(image["Id"]).removeprefix("sha256:"))


def _container(api: Client, container: str) -> None:
    api.remove_container(container, force=True, v=True)


def _volume(api: Client, volume: str) -> None:
    api.remove_volume(volume, force=True)


def _image(api: Client, image: str) -> None:
    # noprune: an untagged parent may be a snapshot that someone still holds
    api.remove_image(image, force=True, noprune=True)
