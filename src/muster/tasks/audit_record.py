"""Record of an audit, as a file. Law: data alone; `verifier.audit` makes it, and `tasks.suite` reads it to leave
unsound tasks out.

    AuditRecord ─ tasks ─► TaskAudit ─ trials ─► Trial       what was tried, and how it was graded
                                     └ faults ─► AuditFault       what that means; none: the task is sound
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from muster.errors import TaskError
from muster.types import Cause, Verdict

FORMAT = 1


class Probe(StrEnum):
    """Probe: what was done to a task before it was graded."""

    UNSOLVED = "unsolved"  # nothing at all: the state that the image gives
    NOOP = "noop"  # only looked around
    SOLUTION = "solution"  # the reference solution was run
    OWNED = "owned"  # as SOLUTION, and graded with the system directories as the solution left them
    EXPLOIT = "exploit"  # a hostile script was run


class Flaw(StrEnum):
    """Flaw: the reason why a task is unsound."""

    IMAGE_FAILED = "image_failed"  # its image cannot be made
    NO_SOLUTION = "no_solution"  # nothing proves that it can be solved
    SOLUTION_FAILS = "solution_fails"  # its own reference solution is not accepted
    NOOP_PASSES = "noop_passes"  # looking around is accepted
    UNSOLVED_PASSES = "unsolved_passes"  # the state that the image gives is accepted
    FLAKY = "flaky"  # the same state was graded differently
    VERIFIER_FAULT = "verifier_fault"  # an honest state gets no reward at all
    HACKABLE = "hackable"  # an exploit earned
    FORCED_INFRASTRUCTURE = "forced_infrastructure"  # an exploit got itself not graded


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One graded state."""

    probe: Probe
    verdict: Verdict
    reward: float | None  # None: not graded
    cause: Cause
    exploit: str = ""
    kind: str = ""  # of the exploit
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFault:
    """Flaw of a task, as an audit found it.

    Example: `str(AuditFault(flaw=Flaw.HACKABLE, subject="git-hooks", note="by design"))`
    """

    flaw: Flaw
    subject: str = ""  # the exploit
    note: str = ""

    def __str__(self) -> str:
        subject = f": {self.subject}" if self.subject else ""
        return f"{self.flaw}{subject}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAudit:
    """The audit of one task. It holds for this content of the task and this battery alone."""

    task: str
    digest: str  # of the task
    battery: str  # digest of the exploits and of the code that ran them
    repeats: int
    sound: bool
    faults: tuple[AuditFault, ...]
    waived: tuple[str, ...] = ()  # exploits that earned and are, by the task's own word, a way to solve it
    trials: tuple[Trial, ...] = ()

    def __post_init__(self) -> None:
        assert self.sound == (not self.faults), "sound means without fault"

    @property
    def pairs(self) -> int:
        """Number of exploits that were tried on this task."""
        return len({t.exploit for t in self.trials if t.probe is Probe.EXPLOIT})


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTarget:
    """Target that an audit of a suite must meet, in the words of the benchmarks."""

    name: str
    value: float
    operator: Literal[">=", "<="]
    threshold: float
    met: bool

    def __str__(self) -> str:
        verdict = "met" if self.met else "missed"
        return f"target {self.name} {self.value:.4g} {self.operator} {self.threshold:g} {verdict}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """Audits by task id, in that order. Example: `read(Path("suite/audit.json")).tasks[0].sound`"""

    tasks: tuple[TaskAudit, ...] = ()
    targets: tuple[AuditTarget, ...] = ()
    format: int = FORMAT

    def of(self, task: str) -> TaskAudit | None:
        return next((a for a in self.tasks if a.task == task), None)


_CODEC = TypeAdapter(AuditRecord)


def read(path: Path) -> AuditRecord:
    """Raises `TaskError` when it is missing, or is not such a file."""
    try:
        record = _CODEC.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise TaskError(f"{path}: no such audit; make it with `muster audit SUITE --json {path}`") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TaskError(f"{path}: not an audit ({where}: {first['msg']}); make it again with --json") from None
    if record.format != FORMAT:
        raise TaskError(f"{path}: format {record.format} of another version; this one reads {FORMAT}: make it again")
    return record


def write(path: Path, record: AuditRecord) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(_CODEC.dump_json(record, indent=1))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
