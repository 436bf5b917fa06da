"""Writes generated suites as Harbor task directories.

Law: the same arguments give the same bytes, whatever else is generated beside them; a suite is written whole or
not at all; no instance occurs twice in a family, and the splits share no name.

    families ─instances(seed, split, difficulty)─► <part>/<family>-<split>-d2-0000/ ─rename─► <out>/

Files of `tests/` are readable by their owner alone: a verifier that runs an agent's program under another user
keeps what it expects to itself.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import tomli_w

from muster.errors import TaskError
from muster_suites import starter
from muster_suites.catalogue import SUITES
from muster_suites.frame import EASIEST, HARDEST, TEST_SCRIPT, Draw, Family, File, Files, Instance
from muster_suites.starter.words import Split

DEFAULT_DIFFICULTY: Final = 2
DRAWS_PER_INSTANCE: Final = 100
"""Redraws before a family is taken to have no more distinct instances."""


def instances(family: Family, *, seed: int, split: Split, difficulty: int) -> Iterator[Instance]:
    """Distinct instances of one family, without end, in an order that depends on the arguments alone.

    Raises `TaskError` when the family has no more of them.
    """
    rng = np.random.default_rng([seed, difficulty, crc32(family.name.encode()), crc32(split.encode())])
    seen: set[str] = set()
    while True:
        for _ in range(DRAWS_PER_INSTANCE):
            instance = family.make(Draw(difficulty=difficulty, split=split, rng=rng))
            key = _visible(instance)
            if key not in seen:
                break
        else:
            raise TaskError(f"family {family.name}: no more than {len(seen)} {split} instances; ask for fewer")
        seen.add(key)
        yield instance


def generate(
    out: Path,
    *,
    suites: Sequence[str],
    seed: int,
    per_family: int,
    split: Split,
    difficulty: int | None = None,
    families: Sequence[str] | None = None,
) -> list[Path]:
    """Write `per_family` tasks of each family of `suites` (or of `families` among them) under the new directory `out`.

    The suite `starter` stands alone and has no difficulty; the default of the others is 2. Returns the task
    directories, sorted. Raises `TaskError` for an unknown suite or family, for numbers out of range, and when `out`
    exists and is not an empty directory; `out` is then as it was.

    Example: `generate(Path("suite"), suites=["terminal", "repo"], seed=1, per_family=4, split="train", difficulty=3)`
    """
    if "starter" in suites:
        if set(suites) != {"starter"} or difficulty is not None:
            raise TaskError("suite starter: generate it alone and without a difficulty")
        return starter.generate(out, seed=seed, per_family=per_family, split=split, families=families)
    difficulty = DEFAULT_DIFFICULTY if difficulty is None else difficulty
    chosen = _chosen(suites, families)
    if per_family < 1:
        raise TaskError(f"per_family = {per_family}: write 1 or more")
    if not EASIEST <= difficulty <= HARDEST:
        raise TaskError(f"difficulty = {difficulty}: write {EASIEST} to {HARDEST}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TaskError(f"{out}: exists; remove it or name a new directory")
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        part.chmod(0o755)
        names: list[str] = []
        for family in chosen:
            drawn = instances(family, seed=seed, split=split, difficulty=difficulty)
            for index, instance in zip(range(per_family), drawn, strict=False):
                names.append(f"{family.name}-{split}-d{difficulty}-{index:04d}")
                write_task(part / names[-1], family, instance, difficulty)
        part.replace(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return [out / name for name in sorted(names)]


def write_task(directory: Path, family: Family, instance: Instance, difficulty: int) -> None:
    """Write one task into the new `directory`, whose name becomes the name of the task."""
    toml = tomli_w.dumps(_toml(directory.name, family, instance, difficulty))
    top: Files = {"task.toml": toml, "instruction.md": f"{instance.instruction.strip()}\n"}
    script = f"#!/bin/bash\nset -euo pipefail\n{instance.solution.strip()}\n"
    for below, files in (
        ("", top),
        ("environment", {"Dockerfile": instance.dockerfile, **instance.files}),
        ("solution", {"solve.sh": File(content=script, mode=0o755)}),
        ("tests", {"test.sh": File(content=TEST_SCRIPT, mode=0o700), **_private(instance.tests)}),
    ):
        for path, file in sorted(files.items()):
            _write(directory / below / path, _file(file))
    for folder in (directory, *directory.rglob("*/")):
        folder.chmod(0o755)  # whatever the umask


def _chosen(suites: Sequence[str], names: Sequence[str] | None) -> tuple[Family, ...]:
    if unknown := sorted(set(suites) - set(SUITES)):
        raise TaskError(f"unknown suite {', '.join(unknown)}; known: starter, {', '.join(SUITES)}")
    known = {family.name: family for suite in dict.fromkeys(suites) for family in SUITES[suite]}
    if names is None:
        return tuple(known.values())
    if missing := sorted(set(names) - set(known)):
        raise TaskError(f"unknown family {', '.join(missing)}; known: {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(names))


def _visible(instance: Instance) -> str:
    """Digest of what an agent can see: two instances that share it are one."""
    state = hashlib.sha256(instance.instruction.encode())
    for path, file in sorted(instance.files.items()):
        state.update(f"\0{path}\0".encode() + _file(file).data)
    return state.hexdigest()


def _file(file: File | str | bytes) -> File:
    return file if isinstance(file, File) else File(content=file)


def _private(files: Files) -> Files:
    return {path: File(content=_file(file).data, mode=_file(file).mode & 0o700) for path, file in files.items()}


def _write(target: Path, file: File) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(file.data)
    target.chmod(file.mode)


def _toml(name: str, family: Family, instance: Instance, difficulty: int) -> dict[str, Any]:
    agent: dict[str, Any] = {"timeout_sec": instance.agent_timeout_s}
    if instance.agent_user is not None:
        agent["user"] = instance.agent_user
    environment: dict[str, Any] = {
        "network_mode": "no-network",
        "cpus": 1,
        "memory_mb": instance.memory_mb,
        "storage_mb": instance.storage_mb,
    }
    if instance.healthcheck is not None:
        environment["healthcheck"] = dict(instance.healthcheck)
    own = {"suite": family.suite, "family": family.name, "difficulty": difficulty, "max_turns": instance.max_turns}
    own["level"] = family.levels[difficulty - 1]
    return {
        "schema_version": "1.4",
        "task": {"name": f"muster/{name}"},
        "metadata": {**own, "tags": [family.suite], **instance.metadata},
        "agent": agent,
        "verifier": {"timeout_sec": instance.verifier_timeout_s},
        "environment": environment,
    }
