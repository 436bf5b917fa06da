"""Writes generated suites as Harbor task directories.

Law: the same arguments give the same bytes, whatever else is generated beside them; a suite is written whole or
not at all; no instance occurs twice in a family, and the splits share no name.

    families ─instances(seed, split, difficulty)─► <part>/<family>-<split>-d2-0000/ ─rename─► <out>/

What a judge expects is readable by its owner alone: a verifier that runs an agent's program under another user keeps
it to itself. Tasks of the starter suite run no program of an agent's, and have no difficulty in their names.
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
from muster_suites.catalogue import SUITES
from muster_suites.frame import EASIEST, HARDEST, TEST_SCRIPT, Draw, Family, File, Files, Instance
from muster_suites.words import Split

DEFAULT_DIFFICULTY: Final = 2
DRAWS_PER_INSTANCE: Final = 100
"""Redraws before a family is taken to have no more distinct instances."""


def instances(family: Family, *, seed: int, split: Split, difficulty: int | None = None) -> Iterator[Instance]:
    """Distinct instances of one family, without end, in an order that depends on the arguments alone.

    `difficulty`: None for a family that has none. Raises `TaskError` when the family has no more instances.
    """
    assert bool(family.levels) == (difficulty is not None), family.name
    harder = [] if difficulty is None else [difficulty]
    rng = np.random.default_rng([seed, *harder, crc32(family.name.encode()), crc32(split.encode())])
    seen: set[str] = set()
    while True:
        for _ in range(DRAWS_PER_INSTANCE):
            instance = family.make(Draw(split, rng, difficulty=difficulty or EASIEST))
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
    seed: int,
    per_family: int,
    split: Split,
    suites: Sequence[str] = ("starter",),
    difficulty: int | None = None,
    families: Sequence[str] | None = None,
) -> list[Path]:
    """Write `per_family` tasks of each family of `suites` (or of `families` among them) under the new directory `out`.

    The suite `starter` stands alone and has no difficulty; the default of the others is 2. Returns the task
    directories, sorted. Raises `TaskError` for an unknown suite or family, for numbers out of range, and when `out`
    exists and is not an empty directory; `out` is then as it was.

    Example: `generate(Path("suite"), suites=["terminal", "repo"], seed=1, per_family=4, split="train", difficulty=3)`
    """
    difficulty = _difficulty(suites, difficulty)
    chosen = _chosen(suites, families)
    if per_family < 1:
        raise TaskError(f"per_family = {per_family}: write 1 or more")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TaskError(f"{out}: exists; remove it or name a new directory")
    kind = split if difficulty is None else f"{split}-d{difficulty}"
    out.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        part.chmod(0o755)
        names: list[str] = []
        for family in chosen:
            drawn = instances(family, seed=seed, split=split, difficulty=difficulty)
            for index, instance in zip(range(per_family), drawn, strict=False):
                names.append(f"{family.name}-{kind}-{index:04d}")
                write_task(part / names[-1], family, instance, difficulty)
        part.replace(out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return [out / name for name in sorted(names)]


def write_task(directory: Path, family: Family, instance: Instance, difficulty: int | None = None) -> None:
    """Write one task into the new `directory`, whose name becomes the name of the task."""
    toml = tomli_w.dumps(_toml(directory.name, family, instance, difficulty))
    solution = instance.solution.strip()
    script = solution if solution.startswith("#!") else f"#!/bin/bash\nset -euo pipefail\n{solution}"
    parts: tuple[tuple[str, int, Files], ...] = (
        ("", 0o644, {"task.toml": toml, "instruction.md": f"{instance.instruction.strip()}\n"}),
        ("environment", 0o644, {"Dockerfile": instance.dockerfile, **instance.files}),
        ("solution", 0o755, {"solve.sh": f"{script}\n"}),
        ("tests", 0o600, {"test.sh": File(content=TEST_SCRIPT, mode=0o700), **instance.tests}),
    )
    for below, mode, files in parts:
        for path, file in files.items():
            _write(directory / below / path, file, mode)
    for folder in (directory, *directory.rglob("*/")):
        folder.chmod(0o755)  # whatever the umask


def _difficulty(suites: Sequence[str], asked: int | None) -> int | None:
    if "starter" in suites:
        if set(suites) != {"starter"} or asked is not None:
            raise TaskError("suite starter: generate it alone and without a difficulty")
        return None
    difficulty = DEFAULT_DIFFICULTY if asked is None else asked
    if not EASIEST <= difficulty <= HARDEST:
        raise TaskError(f"difficulty = {difficulty}: write {EASIEST} to {HARDEST}")
    return difficulty


def _chosen(suites: Sequence[str], names: Sequence[str] | None) -> tuple[Family, ...]:
    if unknown := sorted(set(suites) - set(SUITES)):
        raise TaskError(f"unknown suite {', '.join(unknown)}; known: {', '.join(SUITES)}")
    known = {family.name: family for suite in dict.fromkeys(suites) for family in SUITES[suite]}
    if names is None:
        return tuple(known.values())
    if missing := sorted(set(names) - set(known)):
        raise TaskError(f"unknown family {', '.join(missing)}; known: {', '.join(known)}")
    return tuple(known[name] for name in dict.fromkeys(names))


def _visible(instance: Instance) -> str:
    """Digest of what an agent can see: two instances that share it are one."""
    state = hashlib.sha256(instance.instruction.encode())
    for path, file in sorted(instance.files.items(), key=lambda item: item[0]):
        state.update(f"\0{path}/".encode() if file is None else f"\0{path}\0".encode() + _file(file).data)
    return state.hexdigest()


def _file(file: File | str | bytes, mode: int = 0o644) -> File:
    return file if isinstance(file, File) else File(content=file, mode=mode)


def _write(target: Path, file: File | str | bytes | None, mode: int) -> None:
    if file is None:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(_file(file).data)
    target.chmod(_file(file, mode).mode)


def _toml(name: str, family: Family, instance: Instance, difficulty: int | None) -> dict[str, Any]:
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
    own: dict[str, Any] = {"family": family.name, "max_turns": instance.max_turns}
    if difficulty is not None:
        own = {"suite": family.suite, "family": family.name, "difficulty": difficulty, "max_turns": instance.max_turns}
        own |= {"level": family.levels[difficulty - 1], "tags": [family.suite]}
    return {
        "schema_version": "1.4",
        "task": {"name": f"muster/{name}"},
        "metadata": {**own, **instance.metadata},
        "agent": agent,
        "verifier": {"timeout_sec": instance.verifier_timeout_s},
        "environment": environment,
    }
