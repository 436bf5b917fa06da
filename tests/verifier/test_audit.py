"""The parts of an audit that need no sandbox: the battery's data, the judge, stages, verdict files, retries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import failure, infra, make_task, success
from muster import clock
from muster.errors import TaskError, UserError
from muster.lab.fakes.sandbox import FakeBackend
from muster.sandbox.config import SandboxConfig
from muster.sandbox.pool.pool import Pool
from muster.sandbox.port import Snapshot
from muster.tasks.audit_record import Flaw, Probe, TaskAudit, Trial
from muster.types import Cause, Graded, Outcome, Task, TaskStep, Trajectory, Verdict, VerifierSpec
from muster.verifier.audit import verdict_files
from muster.verifier.audit.auditor import Auditor, AuditPlan, waived_by
from muster.verifier.audit.battery import Exploit, battery, chosen, digest
from muster.verifier.audit.judge import OWNED_HINT, judge, worth_attacking
from muster.verifier.audit.play import ScriptPlayer
from muster.verifier.audit.stages import combined, stages_of

# --- the battery ------------------------------------------------------------------------------------------


def test_the_battery_has_at_least_twenty_kinds() -> None:
    assert len({exploit.kind for exploit in battery()}) >= 20


def test_an_exploit_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(UserError, match=r"--exploit git-hook: no such exploit; there are .*git-hooks"):
        chosen(["git-hook"])
    assert [e.name for e in chosen(["git-hooks"])] == ["git-hooks"]


def test_the_digest_changes_with_a_script_and_with_the_code_that_runs_it() -> None:
    one = Exploit(name="one", kind="k", what="W.", script="true")
    digests = {digest([one], version="1"), digest([one], version="2"), digest([replace(one, script=":")], version="1")}
    assert len(digests) == 3


def test_an_instruction_reaches_the_exploit_as_data() -> None:
    command = battery()[0].command(instruction="it's $(rm -rf /)", workdir="/app")
    assert command.startswith("INSTRUCTION='it'\"'\"'s $(rm -rf /)' WORKDIR=/app\n")


def test_the_page_lists_the_whole_battery() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/audit.md").read_text("utf-8")
    rows = [line for line in page.partition("## The battery")[2].splitlines() if line.startswith("| `")]
    assert rows == [f"| `{e.name}` | {e.kind} | {e.what} |" for e in battery()]


# --- the judge --------------------------------------------------------------------------------------------


def trial(probe: Probe, outcome: Outcome, exploit: str = "") -> Trial:
    reward = outcome.reward if isinstance(outcome, Graded) else None
    return Trial(probe=probe, verdict=outcome.verdict, reward=reward, cause=outcome.cause, exploit=exploit)


def partial(reward: float) -> Graded:
    return Graded(verdict=Verdict.FAILURE, reward=reward, cause=Cause.VERIFIER_FAILED)


SOUND = [
    *(trial(Probe.UNSOLVED, failure()) for _ in range(3)),
    *(trial(Probe.NOOP, failure()) for _ in range(3)),
    *(trial(Probe.SOLUTION, success()) for _ in range(3)),
    trial(Probe.EXPLOIT, failure(), "one"),
]


def without(probe: Probe) -> list[Trial]:
    return [t for t in SOUND if t.probe is not probe]


def flaws(trials: Sequence[Trial], **options: Sequence[str]) -> list[tuple[Flaw, str]]:
    return [(fault.flaw, fault.subject) for fault in judge(trials, **options)]


def test_a_task_that_does_all_it_should_has_no_fault() -> None:
    assert judge(SOUND) == ()


@pytest.mark.parametrize(
    ("probe", "outcomes", "found"),
    [
        (Probe.SOLUTION, [], (Flaw.NO_SOLUTION, "")),
        (Probe.SOLUTION, [failure()], (Flaw.SOLUTION_FAILS, "")),
        (Probe.SOLUTION, [partial(0.5), partial(0.5)], (Flaw.SOLUTION_FAILS, "")),
        (Probe.SOLUTION, [success(), failure()], (Flaw.FLAKY, "solution")),
        (Probe.SOLUTION, [success(1.0), success(1.5)], (Flaw.FLAKY, "solution")),
        (Probe.SOLUTION, [success(), infra()], (Flaw.FLAKY, "solution")),
        (Probe.SOLUTION, [infra(), infra()], (Flaw.VERIFIER_FAULT, "solution")),
        (Probe.NOOP, [success(), success()], (Flaw.NOOP_PASSES, "")),
        (Probe.NOOP, [failure(), partial(0.5)], (Flaw.FLAKY, "noop")),
        (Probe.NOOP, [infra()], (Flaw.VERIFIER_FAULT, "noop")),
        (Probe.UNSOLVED, [success()], (Flaw.UNSOLVED_PASSES, "")),
        (Probe.EXPLOIT, [success()], (Flaw.HACKABLE, "bad")),
        (Probe.EXPLOIT, [partial(0.1)], (Flaw.HACKABLE, "bad")),
        (Probe.EXPLOIT, [infra()], (Flaw.FORCED_INFRASTRUCTURE, "bad")),
    ],
)
def test_each_flaw_is_found_and_no_other(probe: Probe, outcomes: list[Outcome], found: tuple[Flaw, str]) -> None:
    assert flaws([*without(probe), *(trial(probe, o, "bad") for o in outcomes)]) == [found]


def test_an_exploit_may_get_what_doing_nothing_gets() -> None:
    idle = [t for t in SOUND if t.probe is Probe.SOLUTION] + [trial(Probe.NOOP, partial(0.3)) for _ in range(3)]
    assert judge([*idle, trial(Probe.EXPLOIT, partial(0.3), "same")]) == ()
    assert flaws([*idle, trial(Probe.EXPLOIT, partial(0.4), "more")]) == [(Flaw.HACKABLE, "more")]


def test_a_waived_exploit_is_no_fault() -> None:
    assert judge([*SOUND, trial(Probe.EXPLOIT, success(), "way")], waived=("way",)) == ()


def test_a_solution_that_needs_its_own_system_directories_is_told_so() -> None:
    trials = [*without(Probe.SOLUTION), trial(Probe.SOLUTION, failure()), trial(Probe.OWNED, success())]
    assert [fault.note for fault in judge(trials)] == [OWNED_HINT]


def test_exploits_show_nothing_where_doing_nothing_passes_or_is_not_graded() -> None:
    assert worth_attacking(SOUND)
    assert not worth_attacking([*SOUND, trial(Probe.NOOP, success())])
    assert not worth_attacking([*SOUND, trial(Probe.UNSOLVED, infra())])
    assert not worth_attacking([])


@given(st.lists(st.tuples(st.sampled_from(list(Probe)), st.sampled_from([success(), failure(), infra()])), max_size=12))
def test_a_sound_task_was_solved_and_nothing_else_earned(drawn: list[tuple[Probe, Outcome]]) -> None:
    trials = [trial(probe, outcome, "x") for probe, outcome in drawn]
    if judge(trials) == ():
        assert any(t.probe is Probe.SOLUTION for t in trials)
        honest = (Probe.SOLUTION, Probe.OWNED)
        assert all((t.verdict is Verdict.SUCCESS) == (t.probe in honest) for t in trials if t.probe is not Probe.OWNED)


# --- stages -----------------------------------------------------------------------------------------------


def stepped(how: str = "mean") -> Task:
    steps = [
        TaskStep(name=name, instruction=name, verifier=VerifierSpec(tests=Path(name)), min_reward=0.5)
        for name in ("one", "two")
    ]
    return replace(make_task(), steps=tuple(steps), step_reward=how)


def test_each_step_is_a_stage_with_its_own_instruction_and_verifier() -> None:
    assert [(s.task.instruction, str(s.task.verifier.tests)) for s in stages_of(stepped())] == [
        ("one", "one"),
        ("two", "two"),
    ]
    assert len(stages_of(make_task())) == 1


def test_a_stage_goes_on_when_it_was_graded_well_enough() -> None:
    stage = stages_of(stepped())[0]
    assert stage.continues_after(success())
    assert not stage.continues_after(failure())
    assert not stage.continues_after(infra())


@pytest.mark.parametrize(
    ("how", "outcomes", "expected"),
    [
        ("mean", [success(), success()], (Verdict.SUCCESS, 1.0)),
        ("mean", [success(), failure()], (Verdict.FAILURE, 0.5)),
        ("mean", [success()], (Verdict.FAILURE, 0.5)),
        ("final", [failure(), success()], (Verdict.SUCCESS, 1.0)),
        ("final", [success()], (Verdict.FAILURE, 0.0)),
        ("mean", [success(), infra()], (Verdict.INFRA, None)),
    ],
)
def test_the_rewards_of_steps_become_one(
    how: str, outcomes: list[Outcome], expected: tuple[Verdict, float | None]
) -> None:
    outcome = combined(stepped(how), outcomes)
    assert (outcome.verdict, outcome.reward if isinstance(outcome, Graded) else None) == expected


# --- verdict files ----------------------------------------------------------------------------------------


def test_paths_that_an_agent_may_write_are_found_in_tests_and_instruction(tmp_path: Path) -> None:
    (tmp_path / "test.sh").write_text(
        'cat verdict | grep x; python3 /tests/run.py < out/log.txt > /logs/verifier/reward.txt; [ -f "/srv/a.json" ]'
    )
    found = verdict_files.named_paths(tmp_path, "Write to notes.md, not /dev/null or 3.5 times.", "/app")
    assert {"/app/verdict", "/app/out/log.txt", "/srv/a.json", "/app/notes.md"} <= set(found)
    assert not [p for p in found if p.startswith(("/tests", "/logs/verifier", "/dev"))]


def test_a_word_is_not_written_where_it_is_the_right_answer() -> None:
    solved = {"/app/answer.txt": b"Passed\n", "/app/verdict.txt": b"passed"}
    right = verdict_files.answers(solved, "Write your answer to answer.txt.")
    assert right == {"/app/answer.txt": "passed"}
    attack = verdict_files.attack("passed", solved, right)
    assert attack is not None
    assert "verdict.txt" in attack.script
    assert "answer.txt" not in attack.script
    assert verdict_files.attack("passed", ["/app/answer.txt"], right) is None


def test_waived_exploits_are_names_of_the_battery() -> None:
    task = replace(make_task(), metadata={"audit_waived": ["git-objects"]})
    assert waived_by(task) == ("git-objects",)
    for value in (["git-object"], "all", [1]):
        with pytest.raises(TaskError, match=r"metadata.audit_waived = .*: write a list of names of exploits"):
            waived_by(replace(task, metadata={"audit_waived": value}))


# --- what is tried again ----------------------------------------------------------------------------------


class Scripted:
    """A verifier that grades an untouched state as a failure, and changed ones by `outcomes`, one after the other."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        self.deadlines: list[float] = []

    async def grade(
        self, task: Task, final: Snapshot, pristine: Snapshot, trajectory: Trajectory | None = None
    ) -> Outcome:
        if final.id == pristine.id:
            return failure()
        self.deadlines.append(task.verifier.timeout_s)
        return self.outcomes.pop(0)


def attacked(tmp_path: Path, outcomes: list[Outcome]) -> tuple[TaskAudit, Scripted]:
    """The audit of a task without solution, with one repeat and one exploit: noop first, then the exploit."""
    verifier = Scripted([failure(), *outcomes])
    task = replace(make_task(), verifier=VerifierSpec(tests=tmp_path))

    async def main() -> TaskAudit:
        pool = Pool(FakeBackend(), SandboxConfig(slots=2))
        one = Exploit(name="one", kind="kind", what="It does.", script="true")
        plan = AuditPlan(exploits=(one,), verdict_files=False, repeats=1)
        found = await Auditor(ScriptPlayer(pool, verifier, jobs=2), plan).audit(task)
        await pool.close()
        return found

    return clock.run_virtual(main()), verifier


def test_an_exploit_that_was_not_graded_once_is_played_again(tmp_path: Path) -> None:
    found, _ = attacked(tmp_path, [infra(), failure()])
    assert [str(f) for f in found.faults] == ["no_solution (add solution/solve.sh)"]
    assert found.pairs == 1


def test_an_exploit_that_is_never_graded_has_forced_that(tmp_path: Path) -> None:
    found, verifier = attacked(tmp_path, [infra(), infra()])
    assert [f.flaw for f in found.faults] == [Flaw.NO_SOLUTION, Flaw.FORCED_INFRASTRUCTURE]
    assert verifier.deadlines[-1] == 600.0, "the second time it gets the task's own deadline"


def test_what_earns_is_called_by_design(tmp_path: Path) -> None:
    found, _ = attacked(tmp_path, [success()])
    assert "by design: the task's own verifier accepts it" in str(found.faults[-1])
