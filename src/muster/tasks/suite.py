"""The suites of a run: where its training and held-out tasks come from.

    paths given ─► load them        none given ─► generate the starter suite into the run's directory, then load

Law: what is held out is never trained on; a task that stands in both suites is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from muster.errors import TaskError
from muster.tasks.config import SuiteConfig
from muster.tasks.harbor import load_directory
from muster.tasks.quarantine import TrainableTasks, record_of, trainable_tasks
from muster.types import Task

Split = Literal["train", "heldout"]


class Generate(Protocol):
    """Writes a suite of its own under the new directory `out`, the same one for the same arguments."""

    def __call__(
        self, out: Path, *, seed: int, per_family: int, split: Split, families: Sequence[str] | None
    ) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Suites:
    """Loaded tasks. `digest` identifies both sets, contents included. `notes` say what was left out, and why."""

    train: tuple[Task, ...]
    heldout: tuple[Task, ...]
    digest: str
    notes: tuple[str, ...] = ()


def load_suites(config: SuiteConfig, directory: Path, *, seed: int, generate: Generate) -> Suites:
    """Load; what is not given, `generate` writes under `directory`.

    Raises `TaskError` for broken or overlapping suites.
    """
    train, heldout = config.train, config.heldout
    if train is None:
        train = _generated(generate, config, directory / "train", seed, "train")
        heldout = heldout or _generated(generate, config, directory / "heldout", seed, "heldout")
    train_tasks = load_directory(train, strict=True, variables=config.variables).tasks
    heldout_tasks = load_directory(heldout, strict=True, variables=config.variables).tasks if heldout else ()
    shared = {t.digest for t in train_tasks} & {t.digest for t in heldout_tasks}
    if shared:
        names = [t.id for t in heldout_tasks if t.digest in shared]
        raise TaskError(f"{heldout}: held-out tasks that are also trained on: {', '.join(names[:5])}")
    record = record_of(train, config.audit)
    trainable = trainable_tasks(train_tasks, record) if record is not None else TrainableTasks(tasks=tuple(train_tasks))
    return Suites(
        train=trainable.tasks,
        heldout=tuple(heldout_tasks),
        digest=_digest([*trainable.tasks, *heldout_tasks]),
        notes=trainable.notes,
    )


def _generated(generate: Generate, config: SuiteConfig, out: Path, seed: int, split: Split) -> Path:
    if not out.is_dir():
        count = config.per_family if split == "train" else config.heldout_per_family
        generate(out, seed=seed, per_family=count, split=split, families=config.families)
    return out


def _digest(tasks: Sequence[Task]) -> str:
    return hashlib.sha256("".join(t.id + t.digest for t in tasks).encode()).hexdigest()
