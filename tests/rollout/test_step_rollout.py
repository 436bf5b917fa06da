"""Attempts at tasks of several steps over fakes: one sandbox and one transcript, graded step by step."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from factories import make_task
from muster.lab.fakes.sandbox import FakeBackend
from muster.rollout.config import AgentConfig
from muster.sandbox.port import Snapshot
from muster.types import Cause, Graded, HealthCheck, Task, TaskStep, Trajectory, Ungraded, Verdict, VerifierSpec
from muster.verifier.reward import Problem
from rollout.playing import ROOMY, play
from rollout.tokens import STOP

LONG = ROOMY.model_copy(update={"max_turns": 20, "max_tokens": 2000})


def bash(command: str) -> str:
    return f"```bash\n{command}\n```"


def step(name: str, **fields: object) -> TaskStep:
    verifier = VerifierSpec(tests=Path("/nowhere") / name)
    return TaskStep(name=name, instruction=f"Write {name}.", verifier=verifier, **fields)  # pyright: ignore[reportArgumentType]


def stepped(*steps: TaskStep, step_reward: str = "mean") -> Task:
    first = steps[0]
    return replace(
        make_task(), instruction=first.instruction, verifier=first.verifier, steps=steps, step_reward=step_reward
    )


def content(backend: FakeBackend, task: Task, state: Snapshot) -> float | Problem:
    """The number in the file of the step's name, else 0."""
    text = (backend.file(state, f"/app/{task.verifier.tests.name}") or b"0").strip()
    return Problem.MISSING if text == b"broken" else float(text)


def attempt(task: Task, *replies: str, config: AgentConfig = LONG, seen: list[Trajectory] | None = None) -> Trajectory:
    return play(task, *replies, config=config, score=content, seen=seen)


def rewards(trajectory: Trajectory) -> Mapping[str, float | None]:
    return {line["step"]: line["reward"] for line in trajectory.outcome.evidence["steps"]}


def done(name: str, value: object = 1) -> tuple[str, str]:
    return bash(f"echo {value} > {name}"), "DONE"


TWO = stepped(step("a"), step("b"))


def test_a_task_whose_steps_all_pass_succeeds_in_one_transcript() -> None:
    trajectory = attempt(TWO, *done("a"), *done("b"))
    assert trajectory.outcome.verdict is Verdict.SUCCESS
    assert trajectory.outcome == replace(trajectory.outcome, reward=1.0, cause=Cause.VERIFIER_PASSED)
    assert [t.command for t in trajectory.turns] == ["echo 1 > a", None, "echo 1 > b", None]
    assert [t.step for t in trajectory.turns] == [0, 0, 1, 1]
    assert len(trajectory.segments) == 1
    assert len(trajectory.snapshots) == 3, "the image and the end of each step"


def test_the_next_instruction_follows_the_last_reply_and_no_sampled_token_changes() -> None:
    trajectory = attempt(TWO, *done("a"), *done("b"))
    (segment,) = trajectory.segments
    text = "".join(map(chr, segment.tokens_T))
    first, second = text.index("Write a."), text.index("Write b.")
    assert first < text.index(f"DONE{STOP}") < second
    assert text[text.index(f"DONE{STOP}") :].startswith(f"DONE{STOP}\n\x01user\nWrite b.{STOP}\n\x01assistant\n")
    sampled = "".join(map(chr, segment.tokens_T[segment.sampled_T]))
    assert sampled == STOP.join([*done("a"), *done("b"), ""])


def test_the_mean_counts_a_failed_step_and_the_task_fails_by_it() -> None:
    trajectory = attempt(TWO, *done("a", 0.5), *done("b"))
    outcome = trajectory.outcome
    assert isinstance(outcome, Graded)
    assert (outcome.verdict, outcome.reward, outcome.cause) == (Verdict.FAILURE, 0.75, Cause.VERIFIER_FAILED)
    assert rewards(trajectory) == {"a": 0.5, "b": 1.0}
    assert json.loads(json.dumps(outcome.evidence)) == outcome.evidence


def test_the_last_step_alone_may_count() -> None:
    task = stepped(step("a"), step("b"), step_reward="final")
    outcome = attempt(task, *done("a", 0), *done("b")).outcome
    assert isinstance(outcome, Graded)
    assert (outcome.verdict, outcome.reward) == (Verdict.SUCCESS, 1.0)


@pytest.mark.parametrize(("strategy", "reward"), [("mean", 0.4 / 3), ("final", 0.0)])
def test_too_low_a_reward_ends_the_task_and_steps_not_reached_count_as_nothing(strategy: str, reward: float) -> None:
    task = stepped(step("a", min_reward=0.5), step("b"), step("c"), step_reward=strategy)
    trajectory = attempt(task, *done("a", 0.4), *done("b"))
    assert isinstance(trajectory.outcome, Graded)
    assert trajectory.outcome.reward == pytest.approx(reward)
    assert (trajectory.outcome.verdict, trajectory.outcome.cause) == (Verdict.FAILURE, Cause.VERIFIER_FAILED)
    assert rewards(trajectory) == {"a": 0.4}
    assert len(trajectory.turns) == 2


def test_a_budget_ends_the_step_which_is_graded_and_then_the_task() -> None:
    trajectory = attempt(TWO, bash("echo 1 > a"), config=LONG.model_copy(update={"max_turns": 3}))
    assert isinstance(trajectory.outcome, Graded)
    assert (trajectory.outcome.verdict, trajectory.outcome.reward) == (Verdict.FAILURE, 0.5)
    assert trajectory.outcome.cause is Cause.TURN_BUDGET
    assert rewards(trajectory) == {"a": 1.0}


def test_a_step_that_begins_without_turns_left_is_graded_as_it_stands() -> None:
    trajectory = attempt(TWO, *done("a"), config=LONG.model_copy(update={"max_turns": 2}))
    assert trajectory.outcome.cause is Cause.TURN_BUDGET
    assert rewards(trajectory) == {"a": 1.0, "b": 0.0}


def test_each_step_has_its_own_time_and_all_share_the_tokens() -> None:
    slow = (bash("sleep 2"), "DONE")
    task = stepped(step("a", agent_timeout_s=3.5), step("b", agent_timeout_s=3.5))
    trajectory = attempt(task, *slow, *slow)
    assert len(trajectory.turns) == 4, "five seconds in all, in two steps of three and a half"
    assert trajectory.outcome.cause is Cause.VERIFIER_FAILED
    assert attempt(task, bash("sleep 2"), bash("sleep 2")).outcome.cause is Cause.TIME_BUDGET
    few = LONG.model_copy(update={"max_tokens": 60})
    assert attempt(TWO, *done("a"), bash("echo"), config=few).outcome.cause is Cause.TOKEN_BUDGET


def test_files_and_shell_are_those_that_the_last_step_left() -> None:
    trajectory = attempt(TWO, bash("echo 1 > a; export X=1"), "DONE", bash("cat a > b; echo $X"), "DONE")
    assert trajectory.outcome.verdict is Verdict.SUCCESS
    assert trajectory.turns[2].observations == ("1",)


def test_one_step_that_cannot_be_graded_leaves_the_whole_ungraded() -> None:
    def always_broken(backend: FakeBackend, task: Task, state: Snapshot) -> float | Problem:
        return Problem.MISSING if task.verifier.tests.name == "b" else 1.0

    outcome = play(TWO, *done("a"), *done("b"), config=LONG, score=always_broken).outcome
    assert isinstance(outcome, Ungraded)
    assert (outcome.verdict, outcome.cause) == (Verdict.INFRA, Cause.VERIFIER_FAULT)
    assert [line["reward"] for line in outcome.evidence["steps"]] == [1.0, None]


def test_an_agent_that_breaks_a_verifier_gets_nothing_for_that_step_and_no_other() -> None:
    trajectory = attempt(stepped(step("a"), step("b"), step("c")), *done("a"), *done("b", "broken"), *done("c"))
    assert isinstance(trajectory.outcome, Graded)
    assert trajectory.outcome.cause is Cause.VERIFIER_BROKEN_BY_AGENT
    assert trajectory.outcome.reward == pytest.approx(1 / 3)
    assert rewards(trajectory) == {"a": 1.0, "b": 0.0}


def test_the_verifier_is_told_what_was_done_so_far() -> None:
    seen: list[Trajectory] = []
    attempt(TWO, *done("a"), *done("b"), seen=seen)
    assert [len(t.turns) for t in seen] == [2, 4]
    assert all(t.outcome == Ungraded(verdict=Verdict.UNKNOWN, cause=Cause.EVIDENCE_MISSING) for t in seen)
    assert [len(t.snapshots) for t in seen] == [2, 3]


def test_spans_have_no_gap_between_steps() -> None:
    trajectory = attempt(TWO, *done("a"), *done("b"))
    assert all(a.end == pytest.approx(b.start) for a, b in itertools.pairwise(trajectory.spans))
    assert [str(s.stage) for s in trajectory.spans].count("verify") >= 2


# --- setting up ---------------------------------------------------------------------------------------


def files(root: Path, **content: str) -> Path:
    for name, text in content.items():
        path = root / name.replace("__", "/").replace("setup_sh", "setup.sh")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_files_and_setup_come_before_the_instruction(tmp_path: Path) -> None:
    setup = files(tmp_path, setup_sh="cat sub/value > b\n", sub__value="1\n")
    trajectory = attempt(stepped(step("a"), step("b", setup=setup)), *done("a"), "DONE")
    assert trajectory.outcome.verdict is Verdict.SUCCESS


def test_a_first_step_that_cannot_be_set_up_is_infrastructure(tmp_path: Path) -> None:
    task = stepped(step("a", setup=files(tmp_path, setup_sh="nothing\n")))
    outcome = attempt(task, "DONE").outcome
    assert (outcome.verdict, outcome.cause) == (Verdict.INFRA, Cause.IMAGE_FAILED)
    assert outcome.evidence["set_up"]["exit_code"] == 127
    assert not attempt(task, "DONE").turns


def test_a_setup_that_fails_on_any_state_is_the_tasks_own_fault(tmp_path: Path) -> None:
    task = stepped(step("a"), step("b", setup=files(tmp_path, setup_sh="nothing\n")))
    outcome = attempt(task, *done("a")).outcome
    assert (outcome.verdict, outcome.cause) == (Verdict.INFRA, Cause.IMAGE_FAILED)
    assert outcome.evidence["control"]["exit_code"] == 127
    assert outcome.evidence["steps"][0]["reward"] == 1.0


def test_a_setup_that_only_the_agents_files_break_is_held_against_it(tmp_path: Path) -> None:
    task = stepped(step("a"), step("b", setup=files(tmp_path, data="1\n", setup_sh="true\n")))
    outcome = attempt(task, bash("echo 1 > a; mkdir data"), "DONE").outcome
    assert isinstance(outcome, Graded)
    assert (outcome.verdict, outcome.reward) == (Verdict.FAILURE, 0.5)
    assert outcome.cause is Cause.VERIFIER_BROKEN_BY_AGENT
    assert outcome.evidence["set_up"]["path"] == "/app/data"


def test_a_setup_that_misses_the_work_of_a_failed_step_ends_the_task_as_a_failure(tmp_path: Path) -> None:
    task = stepped(step("a"), step("b", setup=files(tmp_path, setup_sh="cat work\n")))
    outcome = attempt(task, *done("a", 0.5)).outcome
    assert isinstance(outcome, Graded)
    assert (outcome.reward, outcome.cause) == (0.25, Cause.VERIFIER_FAILED)


def test_a_step_waits_until_it_is_healthy_and_not_for_ever(tmp_path: Path) -> None:
    check = HealthCheck(command="test -f a", interval_s=4.0, retries=3)
    healthy = attempt(stepped(step("a"), step("b", health=check)), *done("a"), *done("b"))
    assert healthy.outcome.verdict is Verdict.SUCCESS
    never = stepped(step("a"), step("b", health=replace(check, command="test -f nowhere", start_period_s=10.0)))
    trajectory = attempt(never, *done("a"))
    assert (trajectory.outcome.verdict, trajectory.outcome.cause) == (Verdict.INFRA, Cause.IMAGE_FAILED)
    assert trajectory.ended - trajectory.started == pytest.approx(2 * 18.0, abs=9.0), "asked as long on the control"
