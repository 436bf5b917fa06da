"""Startup of a container of an image. Law: values only, as `recipe` and image archives say them."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.types import HealthCheck

SHELL = ("/bin/sh", "-c")
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
"""Of this machine, as images name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Startup of an image's containers.

    Example: `Startup(workdir="/app", command=("python3", "server.py"))`
    """

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str = "/"
    user: str = ""  # empty: root
    shell: tuple[str, ...] = SHELL
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    health: HealthCheck | None = None
