from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from factories import make_task
from muster.errors import TaskError
from muster.tasks.audit_record import AuditFault, AuditRecord, AuditTarget, Flaw, Probe, TaskAudit, Trial, read, write
from muster.tasks.config import SuiteConfig
from muster.tasks.harbor import load_task
from muster.tasks.quarantine import record_of, trainable_tasks
from muster.tasks.suite import load_suites
from muster.types import Cause, Verdict
from muster_suites.write import generate
from tasks.task_directory import write_task


def audited(task: str, digest: str, *faults: AuditFault) -> TaskAudit:
    trial = Trial(probe=Probe.EXPLOIT, verdict=Verdict.FAILURE, reward=0.0, cause=Cause.TAMPERED, exploit="one")
    return TaskAudit(
        task=task, digest=digest, battery="b", repeats=3, sound=not faults, faults=faults, trials=(trial, trial)
    )


MISSED = AuditTarget(name="audit_sound", value=0.0, operator=">=", threshold=1.0, met=False)
HACKABLE = AuditFault(flaw=Flaw.HACKABLE, subject="git-hooks", note="by design")


def record(path: Path, *audits: TaskAudit) -> Path:
    write(path / "audit.json", AuditRecord(tasks=audits))
    return path / "audit.json"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = AuditRecord(tasks=(audited("a", "d", HACKABLE),), targets=(MISSED,))
    write(tmp_path / "deep" / "audit.json", written)
    assert read(tmp_path / "deep" / "audit.json") == written
    assert written.tasks[0].pairs == 1
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["audit.json"]


@pytest.mark.parametrize("text", ["", "[]", '{"tasks": [{"task": 1}]}', '{"format": 99}'])
def test_what_is_no_audit_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(TaskError, match=r"audit\.json: .*make it again"):
        read(tmp_path / "audit.json")


def test_an_unsound_task_does_not_train_and_says_why(tmp_path: Path) -> None:
    good, bad, new = (make_task(name) for name in ("good", "bad", "new"))
    path = record(tmp_path, audited("good", good.digest), audited("bad", bad.digest, HACKABLE))
    trainable = trainable_tasks([good, bad, new], path)
    assert trainable.tasks == (good, new)
    assert trainable.notes == ("bad is left out of training: hackable: git-hooks (by design)",)


def test_an_audit_of_another_content_does_not_count(tmp_path: Path) -> None:
    task = make_task("one")
    trainable = trainable_tasks(
        [replace(task, digest="changed")], record(tmp_path, audited("one", task.digest, HACKABLE))
    )
    assert len(trainable.tasks) == 1
    assert "its audit is older than the task" in trainable.notes[0]


def test_a_suite_without_a_sound_task_is_an_error(tmp_path: Path) -> None:
    task = make_task("one")
    with pytest.raises(TaskError, match="every task is unsound"):
        trainable_tasks([task], record(tmp_path, audited("one", task.digest, HACKABLE)))


def test_many_notes_are_cut(tmp_path: Path) -> None:
    tasks = [make_task(f"t{i:02}") for i in range(30)]
    path = record(tmp_path, *(audited(t.id, t.digest, HACKABLE) for t in tasks[1:]))
    notes = trainable_tasks(tasks, path).notes
    assert (len(notes), notes[-1]) == (21, "… and 9 more tasks")


def test_the_audit_beside_the_tasks_counts_unless_another_is_named(tmp_path: Path) -> None:
    assert record_of(tmp_path, None) is None
    beside = record(tmp_path)
    assert record_of(tmp_path, None) == beside
    assert record_of(tmp_path, tmp_path / "other.json") == tmp_path / "other.json"
    with pytest.raises(TaskError, match=r"other\.json: no such audit; make it with `muster audit"):
        trainable_tasks([make_task()], tmp_path / "other.json")


def test_a_run_trains_on_the_sound_tasks_of_its_suite(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    tasks = [load_task(write_task(suite, name, **{"instruction.md": name})) for name in ("good", "bad")]
    record(suite, audited("good", tasks[0].digest), audited("bad", tasks[1].digest, HACKABLE))
    suites = load_suites(SuiteConfig(train=suite), tmp_path, seed=0, generate=generate)
    assert [t.id for t in suites.train] == ["good"]
    assert len(suites.notes) == 1
    other = load_suites(SuiteConfig(train=suite, audit=record(tmp_path)), tmp_path, seed=0, generate=generate)
    assert [t.id for t in other.train] == ["bad", "good"]
    assert other.digest != suites.digest
