"""Quarantine of tasks, by what `muster audit` found. Law: pure; what is left out is said, with its reason.

audited, sound            trains
audited, unsound          is left out, with a note
audited before a change   trains as if it had not been audited, with a note
not audited               trains
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.errors import TaskError
from muster.tasks.audit_record import AuditRecord, read
from muster.types import Task

DEFAULT_NAME = "audit.json"
_NOTES_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainableTasks:
    """The tasks that may train, and a line for each thing that a user should know."""

    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()


def record_of(suite: Path, named: Path | None) -> Path | None:
    """Path of the audit of `suite`: as `named`, else beside its tasks, if there is one."""
    beside = suite / DEFAULT_NAME
    return named or (beside if beside.is_file() else None)


def trainable_tasks(tasks: Sequence[Task], record: Path) -> TrainableTasks:
    """Leave out the unsound ones. Raises `TaskError` for an unreadable record, or when no task is left."""
    trainable = _without_unsound(tasks, read(record))
    if not trainable.tasks:
        raise TaskError(f"{record}: every task is unsound; mend them (muster audit says how) and audit them again")
    return trainable


def _without_unsound(tasks: Sequence[Task], record: AuditRecord) -> TrainableTasks:
    audits = {audit.task: audit for audit in record.tasks}
    kept: list[Task] = []
    notes: list[str] = []
    for task in tasks:
        audit = audits.get(task.id)
        if audit is not None and audit.digest != task.digest:
            notes.append(f"{task.id}: its audit is older than the task, and does not count; run muster audit again")
        elif audit is not None and not audit.sound:
            notes.append(f"{task.id} is left out of training: {'; '.join(map(str, audit.faults))}")
            continue
        kept.append(task)
    more = len(notes) - _NOTES_SHOWN
    shown = (*notes[:_NOTES_SHOWN], f"… and {more} more tasks") if more > 0 else tuple(notes)
    return TrainableTasks(tasks=tuple(kept), notes=shown)
