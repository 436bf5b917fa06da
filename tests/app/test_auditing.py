"""`muster audit` on real sandboxes: sound tasks pass the whole battery, the demonstration suite is caught."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from muster.app.auditing import AuditOptions, audit
from muster.config import RunConfig
from muster.errors import TaskError, UserError
from muster.sandbox.config import MIB, SandboxConfig
from muster.tasks.audit_record import AuditRecord, Flaw, TaskAudit, read
from muster.verifier.audit.battery import battery, chosen
from muster_suites.write import generate
from tasks.task_directory import write_task

UNSOUND = Path(__file__).parents[2] / "examples/tasks/unsound"
FEW = ("git-hooks", "reward-link", "verdict-words")
Audit = Callable[..., tuple[bool, str]]


@pytest.fixture
def run_audit(tmp_path: Path) -> Audit:
    """`run_audit(directory, exploits=…, record=…)` gives whether all is sound, and what was printed."""

    def run(directory: Path, *, exploits: tuple[str, ...] = FEW, **options: object) -> tuple[bool, str]:
        asked = AuditOptions(**options)  # type: ignore[arg-type]
        plan = replace(asked.plan(), exploits=chosen(exploits), deadline_floor_s=3.0, exploit_timeout_s=4.0)
        sandbox = SandboxConfig(state_dir=tmp_path / "state", kill_grace_s=0.1, disk_bytes=32 * MIB)
        text = io.StringIO()
        console = Console(file=text, width=300)
        sound = audit(directory, asked, config=RunConfig(sandbox=sandbox), console=console, plan=plan)
        return sound, text.getvalue()

    return run


def found(record: AuditRecord, task: str) -> TaskAudit:
    audit = record.of(task)
    assert audit is not None
    return audit


def flaws(record: AuditRecord, task: str) -> set[Flaw]:
    return {fault.flaw for fault in found(record, task).faults}


@pytest.mark.sandbox
def test_no_exploit_of_the_battery_earns_on_a_sound_task(tmp_path: Path, run_audit: Audit) -> None:
    generate(tmp_path / "suite", seed=0, per_family=1, split="train", families=["relay-twice"])
    sound, text = run_audit(tmp_path / "suite", exploits=())
    assert sound, text
    pairs = len(battery()) + 1  # and the task's own verdict files
    assert f"1 tasks: 1 sound, 0 unsound; {pairs} (task, exploit) pairs tried, 0 earned" in text
    assert "target audit_sound 1 >= 1 met" in text
    assert "target audit_exploits_earned 0 <= 0 met" in text


@pytest.mark.sandbox
def test_the_demonstration_suite_is_caught_and_its_record_is_kept(tmp_path: Path, run_audit: Audit) -> None:
    path = tmp_path / "audit.json"
    sound, text = run_audit(UNSOUND, record=path)
    assert not sound
    assert "target audit_sound 0 >= 1 missed" in text
    record = read(path)
    assert flaws(record, "noop-passes") == {Flaw.NOOP_PASSES, Flaw.UNSOLVED_PASSES}
    assert flaws(record, "flaky") == {Flaw.FLAKY}
    assert [str(fault) for fault in found(record, "verdict-file").faults] == [
        "hackable: verdict-file (by design: the agent's own file /app/verdict.txt is the verdict; it said passed)"
    ]
    # nothing changed: nothing is run again, and the verdicts are the same
    again, text = run_audit(UNSOUND, record=path)
    assert not again
    assert f"3 of 3 audits are those of {path}: nothing changed since" in text
    assert read(path) == record


@pytest.mark.sandbox
def test_only_what_changed_is_audited_again(tmp_path: Path, run_audit: Audit) -> None:
    suite, path = tmp_path / "suite", tmp_path / "audit.json"
    shutil.copytree(UNSOUND, suite, ignore=shutil.ignore_patterns("verdict-file"))
    run_audit(suite, record=path)
    mended = "if grep -q eggs /app/notes.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    (suite / "noop-passes/tests/test.sh").write_text(mended)
    sound, text = run_audit(suite, record=path)
    assert "1 of 2 audits are those of" in text
    assert not sound
    assert flaws(read(path), "noop-passes") == set()
    sound, text = run_audit(suite, record=path, only=("noop-passes",))
    assert sound
    assert len(read(path).tasks) == 2, "the others stay in the record"


@pytest.mark.sandbox
def test_steps_are_solved_in_order_and_attacked_in_each(tmp_path: Path, run_audit: Audit) -> None:
    steps = {
        "task.toml": 'schema_version = "1.4"\n[[steps]]\nname = "one"\nmin_reward = 1.0\n[[steps]]\nname = "two"\n',
        "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\n",
        "steps/one/instruction.md": "Make the directory a.",
        "steps/one/solution/solve.sh": "mkdir /app/a",
        "steps/one/tests/test.sh": "[ -d a ]; echo $((! $?)) > /logs/verifier/reward.txt",
        "steps/two/instruction.md": "Make the directory a/b.",
        "steps/two/workdir/hint.txt": "inside",
        "steps/two/solution/solve.sh": "mkdir /app/a/b",
        "steps/two/tests/test.sh": "[ -d a/b ] && [ -f hint.txt ]; echo $((! $?)) > /logs/verifier/reward.txt",
    }
    write_task(tmp_path / "suite", "stairs", **steps)
    sound, text = run_audit(tmp_path / "suite")
    assert sound, text


@pytest.mark.sandbox
def test_an_image_that_cannot_be_made_is_named(tmp_path: Path, run_audit: Audit) -> None:
    broken = {"environment/Dockerfile": "FROM debian:bookworm-slim\nCOPY missing .\n"}
    write_task(tmp_path / "suite", "broken", **broken)
    sound, text = run_audit(tmp_path / "suite")
    assert not sound
    assert "image_failed" in text


def test_a_part_of_the_battery_makes_no_record() -> None:
    with pytest.raises(UserError, match="a record holds whole audits"):
        AuditOptions(exploits=("git-hooks",), record=Path("audit.json"))


def test_a_part_of_the_battery_is_what_was_named() -> None:
    plan = AuditOptions(exploits=("git-hooks",)).plan()
    assert ([e.name for e in plan.exploits], plan.verdict_files) == (["git-hooks"], False)
    plan = AuditOptions(exploits=("verdict-file",)).plan()
    assert (plan.exploits, plan.verdict_files) == ((), True)


def test_a_task_that_is_not_there_is_named(run_audit: Audit) -> None:
    with pytest.raises(TaskError, match="no task 'flakey' there; see `muster tasks list"):
        run_audit(UNSOUND, only=("flakey",))
