"""Image archives: what `docker save`, `podman save` and OCI tools write into a tar. Law: reads, and unpacks nothing.

manifest.json (docker)                       ─► config, layers in order
index.json ─► manifest for our machine (OCI) ─► config, layers in order
neither                                      ─► None: a plain root file system
"""

from __future__ import annotations

import json
import shlex
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from muster.errors import ImageError
from muster.sandbox.dockerfile.startup import ARCHITECTURE, SHELL, Startup
from muster.types import HealthCheck

_SECOND_NS = 1e9
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Names of members of the archive, and what a container starts with."""

    layers: tuple[str, ...]
    startup: Startup


def read_manifest(tar: tarfile.TarFile, what: str) -> Manifest | None:
    """None when the archive is no image. Raises `ImageError` for an image that we cannot use."""
    names = {member.name.removeprefix("./"): member.name for member in tar}

    def read(name: str) -> Any:
        file = tar.extractfile(names[name]) if name in names else None
        if file is None:
            raise ImageError(f"{what}: names {name}, and does not hold it")
        return json.load(file)

    try:
        if "manifest.json" in names:
            found = _docker(read("manifest.json"), what)
        elif "index.json" in names and "oci-layout" in names:
            found = _oci(read, read("index.json"), what)
        else:
            return None
        config, layers = found
        return Manifest(layers=tuple(names.get(n, n) for n in layers), startup=_startup(read(config), what))
    except (KeyError, TypeError, ValueError) as error:
        raise ImageError(f"{what}: its manifest is not understood: {error!r}") from error


def _docker(images: list[Json], what: str) -> tuple[str, list[str]]:
    if len(images) != 1:
        tags = ", ".join(str(tag) for image in images for tag in image.get("RepoTags") or ["untagged"])
        raise ImageError(f"{what}: holds {len(images)} images ({tags}): save one image to a file")
    return images[0]["Config"], list(images[0]["Layers"])


def _oci(read: Any, index: Json, what: str) -> tuple[str, list[str]]:
    """Follow indexes down to a manifest."""
    descriptor = _choose(index["manifests"], what)
    manifest = read(_blob(descriptor))
    if "manifests" in manifest:
        return _oci(read, manifest, what)
    return _blob(manifest["config"]), [_blob(layer) for layer in manifest["layers"]]


def _choose(descriptors: list[Json], what: str) -> Json:
    """The image for this machine; attestations and the like name no platform that is one."""
    fitting = [d for d in descriptors if _platform(d) in (None, ("linux", ARCHITECTURE))]
    if len(fitting) != 1:
        have = ", ".join("/".join(_platform(d) or ("unnamed",)) for d in descriptors)
        raise ImageError(f"{what}: needs one image for linux/{ARCHITECTURE}, has: {have}")
    return fitting[0]


def _platform(descriptor: Json) -> tuple[str, str] | None:
    found = descriptor.get("platform")
    return None if found is None else (found["os"], found["architecture"])


def _blob(descriptor: Json) -> str:
    algorithm, _, value = str(descriptor["digest"]).partition(":")
    return f"blobs/{algorithm}/{value}"


def _startup(image: Json, what: str) -> Startup:
    config = cast(Json, image.get("config") or {})
    if config.get("OnBuild"):
        raise ImageError(f"{what}: has ONBUILD instructions, which are not supported")
    return Startup(
        env=dict(str(pair).split("=", 1) for pair in config.get("Env") or ()),  # type: ignore[misc]
        workdir=config.get("WorkingDir") or "/",
        user=config.get("User") or "",
        shell=tuple(config.get("Shell") or SHELL),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
        health=_health(config.get("Healthcheck") or {}),
    )


def _health(check: Json) -> HealthCheck | None:
    kind, *words = check.get("Test") or ["NONE"]
    if kind == "NONE" or not words:
        return None
    return HealthCheck(
        command=words[0] if kind == "CMD-SHELL" else shlex.join(words),
        interval_s=(check.get("Interval") or 30e9) / _SECOND_NS,
        timeout_s=(check.get("Timeout") or 30e9) / _SECOND_NS,
        start_period_s=(check.get("StartPeriod") or 0) / _SECOND_NS,
        retries=check.get("Retries") or 3,
    )
