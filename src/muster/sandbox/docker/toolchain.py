"""The tools of an untouched image, bound read-only over those of an agent's final state.

    image ─ copied once by a container of it ─► volume: usr, bin…, etc ─ bound into each verifier's fork

A container cannot bind from an image, so a volume holds a copy of /usr and, where they are no links into it, of /bin,
/sbin and /lib*. What decides which libraries and modules a program loads is bound as well: the linker's cache, the
alternatives, Python's own settings (links below /usr lead there), and an empty /etc/ld.so.preload. Law: the copy is
made by the image alone, before any agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.errors import SandboxError, SandboxStartError
from muster.sandbox.docker.container import Bind
from muster.sandbox.docker.daemon import Client, Daemon
from muster.sandbox.docker.labels import Owner

_COPY_TIMEOUT_S = 300
_AT = "/muster"
# prints one line for each place: where it is in the sandbox, and where its copy is in the volume
_COPY = f"""set -e; cd {_AT}; mkdir etc; : >etc/ld.so.preload; echo /etc/ld.so.preload etc/ld.so.preload
cp -a /usr usr; echo /usr usr
for name in bin sbin lib lib32 lib64 libx32; do
  if [ -L /$name ]; then
    target=$(readlink -f /$name)
    case $target in /usr/*) [ ! -d $target ] || echo /$name ${{target#/}};; esac
  elif [ -d /$name ]; then cp -a /$name $name; echo /$name $name; fi
done
for path in /etc/ld.so.cache /etc/alternatives /etc/python3*; do
  [ ! -e $path ] || {{ cp -a $path etc/; echo $path ${{path#/}}; }}
done"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """The binds for a fork, all read-only."""

    binds: tuple[Bind, ...]


async def copy(daemon: Daemon, owner: Owner, image: str, name: str) -> Toolchain:
    """Copy the tools of `image` into the volume `name`. Raises `SandboxStartError`."""
    try:
        return await daemon.call(
            "copy the tools", lambda api: _copy(api, owner, image, name), timeout_s=_COPY_TIMEOUT_S
        )
    except SandboxError as error:
        raise SandboxStartError(f"the tools of {image}: {error}", error.evidence) from None


def _copy(api: Client, owner: Owner, image: str, name: str) -> Toolchain:
    labels = owner.labels(name)
    volume: dict[str, Any] = api.create_volume(name, labels=labels)
    host = api.create_host_config(network_mode="none", binds=[f"{name}:{_AT}"])
    made: dict[str, Any] = api.create_container(
        image, ["/bin/sh", "-c", _COPY], entrypoint=[], user="0", labels=labels, host_config=host
    )
    try:
        api.start(made["Id"])
        ended: dict[str, Any] = api.wait(made["Id"], timeout=_COPY_TIMEOUT_S)
        said = api.logs(made["Id"]).decode(errors="replace")
    finally:
        api.remove_container(made["Id"], force=True)
    if ended["StatusCode"] != 0:
        raise SandboxStartError(f"the tools of {image} cannot be copied", {"said": said[-500:]})
    at = Path(volume["Mountpoint"])
    places = [line.split(" ") for line in said.splitlines() if line.startswith("/")]
    return Toolchain(binds=tuple(Bind(source=at / copied, target=place) for place, copied in places))
