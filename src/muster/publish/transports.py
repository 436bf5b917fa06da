"""The three ways behind one shape: what the run makes, the trainer's process uses, and the run tidies up.

    TransportConfig ─► exporter_for ─► Exporter ─ pickled ─► trainer's process ─ export ─► Publication ─► engines
                                          └─ clear() at the end of the run

| kind | the file lies | an engine | bytes that travel |
|---|---|---|---|
| memory | in /dev/shm, once | maps it | none |
| direct | in /dev/shm of the trainer's machine | fetches it by HTTP | whole, delta or adapter |
| checkpoint | in a folder or behind a URL | reads it there | whole, delta or adapter |
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from muster.errors import ConfigError
from muster.publish.chain import ChainExporter
from muster.publish.config import CheckpointConfig, DirectConfig, MemoryConfig, TransportConfig
from muster.publish.places import FolderPlace, MemoryPlace, RemotePlace, ServedPlace
from muster.transport import files
from muster.transport.files import on_this_host
from muster.transport.storage import local_path
from muster.types import Publication

Exporter = ChainExporter
"""Satisfies `trainer.port.Exporter`; `clear()` removes what the run published."""


def exporter_for(config: TransportConfig, *, run_label: str, directory: Path) -> Exporter:
    """Made by the run, whose process owns the files. directory: of the run. Raises `ConfigError`.

    Example: `exporter_for(DirectConfig(form="delta"), run_label="demo", directory=Path("runs/demo"))`
    """
    weights = directory.absolute() / "weights"
    match config:
        case MemoryConfig():
            return ChainExporter(
                MemoryPlace(fallback=weights),
                transport=config.kind,
                label=run_label,
                keep=config.keep,
                max_bytes_per_s=config.max_bytes_per_s,
            )
        case DirectConfig():
            place = ServedPlace(
                host=config.host, port=config.port, advertised_host=config.advertised_host, fallback=weights
            )
            return _chained(config, place, run_label)
        case CheckpointConfig():
            return _stored(config, weights, on_this_host(run_label))
        case _:
            assert_never(config)


def retire(publication: Publication) -> None:
    """It was delivered. In memory nobody needs the file any more; elsewhere the exporter's `keep` decides, for a later
    delta builds on it, and an engine that restarts fetches it. Who has mapped a file keeps its pages. Idempotent.
    """
    if publication.transport == "memory":
        Path(publication.location).unlink(missing_ok=True)


def reap() -> list[Path]:
    """Remove what dead processes left on this machine, trainers and engines; returns the files."""
    return files.reap()


def _chained(
    config: DirectConfig | CheckpointConfig, place: FolderPlace | RemotePlace | ServedPlace, label: str
) -> ChainExporter:
    return ChainExporter(
        place,
        transport=config.kind,
        label=label,
        form=config.form,
        anchor_every=config.anchor_every,
        keep=config.keep,
        max_bytes_per_s=config.max_bytes_per_s,
    )


def _stored(config: CheckpointConfig, default: Path, label: str) -> ChainExporter:
    try:
        path = local_path(config.location) if config.location else default
        exporter = _chained(config, RemotePlace(config.location) if path is None else FolderPlace(path), label)
        exporter.reap()  # and so the storage is asked before the run starts
    except OSError as error:
        raise ConfigError(
            f"publish.transport.location: {error}; it is a folder, or a URL whose package is installed, that this "
            "machine may list and write"
        ) from error
    return exporter
