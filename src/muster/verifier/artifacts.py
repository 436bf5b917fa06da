"""Artifacts: what a verifier with an image of its own gets to see of the agent's final state.

    fork of final ─collect commands, tar─► handed/artifacts.tar ─unpack, no links─► read-only mounts, same paths

Law: the archive is data that an agent may have shaped: of it only plain files and directories are unpacked, and
nothing outside of the target is written.
"""

from __future__ import annotations

import os
import shlex
import tarfile
from collections.abc import Sequence
from pathlib import Path

from muster.sandbox.files import open_inside
from muster.sandbox.port import Mount, Sandbox
from muster.types import Collect

TARGET = "/logs/collected"
"""Where the fork of the final state writes the archive: a mount that the agent never saw."""
_ARCHIVE = "artifacts.tar"
_TAR_TIMEOUT_S = 120.0


async def collect(sandbox: Sandbox, commands: Sequence[Collect], paths: Sequence[str]) -> None:
    """Run the commands, whatever their exit codes, then pack `paths`, absolute ones. What is missing stays out."""
    for it in commands:
        as_user = it.command
        if it.user:
            as_user = f"/usr/bin/su -s /bin/bash {shlex.quote(it.user)} -c {shlex.quote(it.command)}"
        await sandbox.run(as_user, it.timeout_s)
    if paths:
        names = shlex.join(path.lstrip("/") for path in paths)
        # what is missing is an error to tar, after all else is packed
        await sandbox.run(f"/usr/bin/tar -C / -cf {TARGET}/{_ARCHIVE} -- {names}", _TAR_TIMEOUT_S)


def unpack(handed: Path, target: Path, paths: Sequence[str]) -> tuple[Mount, ...]:
    """Unpack the archive into the new directory `target`; mounts for those `paths` that it holds."""
    target.mkdir()
    try:
        descriptor = open_inside(handed, _ARCHIVE, os.O_RDONLY, follow=False)
    except OSError:
        return ()
    with os.fdopen(descriptor, "rb") as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                archive.extractall(target, filter=_plain)
        except tarfile.ReadError:
            return ()
    places = ((target / path.lstrip("/"), path) for path in paths)
    return tuple(Mount(source=place, target=path) for place, path in places if place.exists())


def _plain(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    if not (member.isreg() or member.isdir()):
        return None
    try:
        return tarfile.data_filter(member, path)
    except tarfile.FilterError:
        return None
