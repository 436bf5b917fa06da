"""Replays over fakes on the virtual clock: what is compared, and what is said of faults."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from factories import make_task
from muster import clock
from muster.lab.fakes.sandbox import FakeBackend, FakeFaults
from muster.lab.fakes.verifier import FakeVerifier
from muster.rollout.config import AgentConfig
from muster.rollout.replay import Replay, Replayer, Reproduction
from muster.rollout.sameness import Sameness
from muster.sandbox.config import SandboxConfig
from muster.sandbox.pool.pool import Pool
from muster.types import Cause, Graded, ImageSpec, Outcome, Task, TaskStep, Trajectory, Turn, Ungraded, Verdict
from muster.verifier.reward import Problem

SUCCESS = Graded(verdict=Verdict.SUCCESS, reward=1.0, cause=Cause.VERIFIER_PASSED)
TASK = make_task()


def turn(index: int, command: str | None, observation: str = "") -> Turn:
    commands = (command,) if command else ()
    observations = (observation,) if command and observation else ()
    return Turn(
        index=index,
        reply="",
        command=command,
        observation=observation,
        commands=commands,
        observations=observations,
    )


def recorded(*turns: Turn, outcome: Outcome = SUCCESS, image: str | None = None) -> Trajectory:
    return Trajectory(
        id="g0.0",
        group_id="g0",
        task_id=TASK.id,
        attempt=0,
        segments=(),
        turns=turns,
        spans=(),
        outcome=outcome,
        started=0.0,
        ended=1.0,
        snapshots=(image,) if image else (),
    )


def replay(
    trajectory: Trajectory, *, faults: FakeFaults | None = None, broken: bool = False, task: Task = TASK
) -> Replay:
    async def main() -> Replay:
        backend = FakeBackend(faults=faults, rng=np.random.default_rng(0))
        pool = Pool(backend, SandboxConfig(warm=0))

        def score(*_: object) -> float | Problem:
            return Problem.MISSING if broken else 1.0

        known = await backend.prepare(ImageSpec())
        snapshots = tuple(known.id if name == "known" else name for name in trajectory.snapshots)
        replayer = Replayer(pool=pool, verifier=FakeVerifier(score), config=AgentConfig())
        found = await replayer.replay(replace(trajectory, snapshots=snapshots), task)
        await pool.close()
        assert backend.live == 0
        assert backend.snapshots == 1, "only the image is left"
        return found

    return clock.run_virtual(main())


def test_the_same_actions_give_the_same_observations_and_the_same_outcome() -> None:
    missing = "cat: /app/missing\nexit code 1"
    turns = (turn(0, "echo one > a; cat a", "one"), turn(1, "cat missing", missing))
    found = replay(recorded(*turns, turn(2, None), image="known"))
    assert [step.sameness for step in found.steps] == [Sameness.EXACT, Sameness.EXACT]
    assert found.divergence is None
    assert found.same_image
    assert found.reproduction is Reproduction.SAME
    assert found.faithful


def test_the_first_divergence_is_reported_and_the_replay_goes_on() -> None:
    turns = (turn(0, "echo one", "one"), turn(1, "echo two", "zwei"), turn(2, "echo three", "drei"))
    found = replay(recorded(*turns))
    assert found.divergence is not None
    assert (found.divergence.turn, found.divergence.recorded, found.divergence.again) == (1, "zwei", "two")
    assert len(found.steps) == 3
    assert not found.faithful


def test_another_image_and_another_outcome_are_said() -> None:
    failure = Graded(verdict=Verdict.FAILURE, reward=0.0, cause=Cause.TURN_BUDGET)
    found = replay(recorded(turn(0, "echo one", "one"), outcome=failure, image="older"))
    assert not found.same_image
    assert found.reproduction is Reproduction.OTHER
    assert not found.faithful


def test_a_fault_of_the_verifier_that_is_still_there_repeats() -> None:
    fault = Ungraded(verdict=Verdict.INFRA, cause=Cause.VERIFIER_FAULT)
    found = replay(recorded(turn(0, "echo one", "one"), outcome=fault), broken=True)
    assert found.reproduction is Reproduction.REPEATS
    assert found.outcome.cause is Cause.VERIFIER_FAULT
    assert found.faithful
    assert replay(recorded(outcome=fault)).reproduction is Reproduction.GONE


def test_a_sandbox_that_was_lost_in_a_command_runs_that_command_again() -> None:
    lost = Ungraded(verdict=Verdict.INFRA, cause=Cause.SANDBOX_LOST)
    last = turn(1, "echo two")  # the journal has no observation of it
    found = replay(recorded(turn(0, "echo one", "one"), last, outcome=lost))
    assert (found.steps[1].recorded, found.steps[1].again) == (None, "two")
    assert found.reproduction is Reproduction.GONE
    assert found.faithful


def test_a_sandbox_that_the_agent_destroyed_is_destroyed_again() -> None:
    gone = Graded(verdict=Verdict.FAILURE, reward=0.0, cause=Cause.SANDBOX_DESTROYED_BY_AGENT)
    found = replay(recorded(turn(0, "echo one", "one"), turn(1, "destroy"), outcome=gone))
    assert found.steps[1].again is None
    assert found.reproduction is Reproduction.SAME
    assert found.faithful


def test_a_loss_by_infrastructure_now_repeats_the_fault() -> None:
    lost = Ungraded(verdict=Verdict.INFRA, cause=Cause.SANDBOX_LOST)
    found = replay(recorded(turn(0, "echo one"), outcome=lost), faults=FakeFaults(loss=1.0))
    assert found.reproduction is Reproduction.REPEATS


@pytest.mark.parametrize("cause", [Cause.ENGINE_FAILED, Cause.PLAYER_FAILED])
def test_a_fault_of_what_takes_no_part_in_a_replay_is_out_of_reach(cause: Cause) -> None:
    lost = Ungraded(verdict=Verdict.INFRA, cause=cause)
    assert replay(recorded(outcome=lost)).reproduction is Reproduction.OUT_OF_REACH


def test_each_step_of_a_task_gets_its_own_actions() -> None:
    steps = tuple(TaskStep(name=name, instruction=f"Do {name}.", verifier=TASK.verifier) for name in ("one", "two"))
    task = replace(TASK, steps=steps)
    turns = (
        turn(0, "echo a > a; ls", "a"),
        turn(1, None),
        replace(turn(2, "echo b > b; ls", "a\nb"), step=1),
        replace(turn(3, None), step=1),
    )
    found = replay(recorded(*turns), task=task)
    assert [(step.turn, step.sameness) for step in found.steps] == [(0, Sameness.EXACT), (2, Sameness.EXACT)]
    assert [line["step"] for line in found.outcome.evidence["steps"]] == ["one", "two"]
    assert found.faithful
