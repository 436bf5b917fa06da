"""Writes the starter suite as Harbor task directories.

Law: the same seed gives the same bytes, whatever else is generated beside it; a suite is written whole or not
at all; no instance occurs twice, and the pools of `words` keep the splits apart.

    FAMILIES ─instances(seed, split)─► Instance ─write─► <out>.part/<family>-<split>-0000/ ─rename─► <out>/
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

import numpy as np

from muster.errors import TaskError
from muster_suites.starter.family import Family, Instance, verifier_script
from muster_suites.starter.one_command import ONE_COMMAND
from muster_suites.starter.relayed import RELAYED
from muster_suites.starter.words import Split, Words

FAMILIES: Final[tuple[Family, ...]] = ONE_COMMAND + RELAYED

DRAWS_PER_INSTANCE: Final = 100
"""Redraws before a family is taken to have no more distinct instances (the smallest has over a thousand)."""


def instances(family: Family, *, seed: int, split: Split) -> Iterator[Instance]:
    """Distinct instances of one family, without end, in an order that depends on the arguments alone.

    Raises `TaskError` when the family has no more of them.
    """
    rng = np.random.default_rng([seed, crc32(family.name.encode()), crc32(split.encode())])
    seen: set[str] = set()
    while True:
        for _ in range(DRAWS_PER_INSTANCE):
            instance = family.make(Words(split, rng))
            key = repr((instance.instruction, sorted(instance.before.items())))
            if key not in seen:
                break
        else:
            raise TaskError(f"family {family.name}: no more than {len(seen)} {split} instances; ask for fewer")
        seen.add(key)
        yield instance


def generate(
    out: Path, *, seed: int, per_family: int, split: Split, families: Sequence[str] | None = None
) -> list[Path]:
    """Write `per_family` tasks of each family (default: all) under the new directory `out`.

    Returns the task directories, sorted. Raises `TaskError` for an unknown family, for `per_family` below 1,
    and when `out` exists and is not an empty directory; `out` is then as it was.
    """
    chosen = _chosen(families)
    if per_family < 1:
        raise TaskError(f"per_family = {per_family}: write 1 or more")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TaskError(f"{out}: exists; remove it or name a new directory")
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        part.chmod(0o755)
        names = [
            _write(part / f"{family.name}-{split}-{index:04d}", family, instance)
            for family in chosen
            for index, instance in zip(range(per_family), instances(family, seed=seed, split=split), strict=False)
        ]
        part.replace(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return [out / name for name in sorted(names)]


def _chosen(names: Sequence[str] | None) -> tuple[Family, ...]:
    if names is None:
        return FAMILIES
    known = {family.name: family for family in FAMILIES}
    if unknown := sorted(set(names) - set(known)):
        raise TaskError(f"unknown family {', '.join(unknown)}; known: {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(names))


def _write(directory: Path, family: Family, instance: Instance) -> str:
    """Returns the name of the directory."""
    files = directory / "environment" / "files"
    for path, content in sorted(instance.before.items()):
        if content is None:
            (files / path).mkdir(parents=True, exist_ok=True)
        else:
            (files / path).parent.mkdir(parents=True, exist_ok=True)
            (files / path).write_text(content)
    for path, text, mode in (
        ("task.toml", _toml(directory.name, family), 0o644),
        ("instruction.md", f"{instance.instruction}\n", 0o644),
        ("environment/Dockerfile", _DOCKERFILE, 0o644),
        ("tests/test.sh", verifier_script(instance), 0o755),
        ("solution/solve.sh", f"#!/bin/sh\ncd /app\n{instance.solution}\n", 0o755),
    ):
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)
    return directory.name


_DOCKERFILE = "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY files/ /app/\n"


def _toml(name: str, family: Family) -> str:
    return f"""\
schema_version = "1.4"

[task]
name = "muster/{name}"

[metadata]
family = "{family.name}"
max_turns = {family.max_turns}

[agent]
timeout_sec = 60

[verifier]
timeout_sec = 30

[environment]
network_mode = "no-network"
cpus = 1
memory_mb = 256
storage_mb = 64
"""
