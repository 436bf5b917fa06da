"""One attempt over fakes on the virtual clock: what the model did and what happened to it decide the outcome."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from factories import make_task
from muster.engine.pieces import after
from muster.lab.fakes.engine import FakeRates, FakeReplica
from muster.lab.fakes.sandbox import FakeFaults
from muster.rollout.config import AgentConfig
from muster.types import Cause, Completion, Graded, Ints, Sampling, Session, Trajectory, Verdict
from rollout.playing import ROOMY, play
from rollout.tokens import STOP

SOLVE = "```bash\necho yes > done\n```"


def attempt(
    *replies: str,
    config: AgentConfig = ROOMY,
    max_turns: int | None = None,
    faults: FakeFaults | None = None,
    break_engine: bool = False,
    rates: FakeRates | None = None,
) -> Trajectory:
    task = make_task("task", max_turns=max_turns)
    return play(task, *replies, config=config, faults=faults, break_engine=break_engine, rates=rates)


def test_a_model_that_solves_and_says_so_succeeds() -> None:
    trajectory = attempt(SOLVE, "DONE")
    assert trajectory.outcome.verdict is Verdict.SUCCESS
    assert trajectory.outcome.cause is Cause.VERIFIER_PASSED
    assert [t.command for t in trajectory.turns] == ["echo yes > done", None]
    assert trajectory.turns[0].exit_code == 0


def test_each_command_is_kept_with_what_the_model_was_shown_of_it() -> None:
    call = '<tool_call>{"name": "bash", "arguments": {"command": "%s"}}</tool_call>'
    config = ROOMY.model_copy(update={"action_format": "tool_call", "max_tokens_per_turn": 200})
    both = call % "echo yes > done" + call % "cat done; false"
    first, last = attempt(both, "That is all.", config=config).turns
    assert first.commands == ("echo yes > done", "cat done; false")
    assert first.observations == ("(no output)", "yes\nexit code 1")
    assert first.exit_code == 1
    assert (last.commands, last.observations) == ((), ())


def test_a_command_that_says_nothing_for_too_long_ends_and_the_model_is_told() -> None:
    config = ROOMY.model_copy(update={"command_silence_s": 2.0})
    first, *_ = attempt("```bash\nsleep 4\n```", "DONE", config=config).turns
    assert first.observations == ("(no output)\n[stopped: no output for 2 s]",)
    assert first.duration_s == pytest.approx(2.0, abs=0.1)


def test_a_model_that_gives_up_fails() -> None:
    outcome = attempt("DONE").outcome
    assert (outcome.verdict, outcome.cause) == (Verdict.FAILURE, Cause.VERIFIER_FAILED)


def test_a_model_loop_that_never_ends_is_graded_when_its_turns_are_spent() -> None:
    trajectory = attempt("```bash\necho again\n```")
    assert (trajectory.outcome.verdict, trajectory.outcome.cause) == (Verdict.FAILURE, Cause.TURN_BUDGET)
    assert len(trajectory.turns) == AgentConfig().max_turns


def test_the_task_may_allow_fewer_turns_and_the_final_state_still_counts() -> None:
    trajectory = attempt(SOLVE, max_turns=1)
    assert trajectory.outcome.verdict is Verdict.SUCCESS
    assert len(trajectory.turns) == 1


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        ({"max_tokens": 20, "max_tokens_per_turn": 20}, Cause.TOKEN_BUDGET),
        ({"max_context_tokens": 2600, "max_turns": 90, "max_tokens": 9999}, Cause.CONTEXT_BUDGET),
        ({"time_budget_s": 2.0, "max_turns": 90, "max_tokens": 9999}, Cause.TIME_BUDGET),
    ],
)
def test_each_budget_ends_the_episode_with_its_own_cause(config: dict[str, float], cause: Cause) -> None:
    base = {"temperature": 1.0, "max_context_tokens": 4000, "max_tokens_per_turn": 60}
    trajectory = attempt("```bash\nsleep 0.5\n```", config=AgentConfig.model_validate({**base, **config}))
    assert trajectory.outcome.cause is cause


def test_a_slow_engine_never_consumes_the_models_time() -> None:
    config = ROOMY.model_copy(update={"time_budget_s": 5.0, "reference_tokens_per_s": 100.0})
    trajectory = attempt(SOLVE, "DONE", config=config, rates=FakeRates(decode_token_s=2.0))
    assert trajectory.ended - trajectory.started > 20
    assert trajectory.outcome.verdict is Verdict.SUCCESS


def test_a_reply_that_cannot_be_read_is_an_observation() -> None:
    trajectory = attempt("hm", SOLVE, "DONE")
    assert trajectory.turns[0].command is None
    assert "No command found" in trajectory.turns[0].observation
    assert trajectory.outcome.verdict is Verdict.SUCCESS


def test_a_dead_engine_is_infrastructure_with_no_reward() -> None:
    outcome = attempt(SOLVE, break_engine=True).outcome
    assert (outcome.verdict, outcome.cause) == (Verdict.INFRA, Cause.ENGINE_FAILED)
    assert not isinstance(outcome, Graded)


def test_a_sandbox_that_never_starts_is_infrastructure() -> None:
    outcome = attempt(SOLVE, faults=FakeFaults(start_failure=1.0)).outcome
    assert (outcome.verdict, outcome.cause) == (Verdict.INFRA, Cause.SANDBOX_START_FAILED)


def test_a_sandbox_lost_from_outside_is_infrastructure() -> None:
    outcome = attempt(SOLVE, faults=FakeFaults(loss=1.0)).outcome
    assert (outcome.verdict, outcome.cause) == (Verdict.INFRA, Cause.SANDBOX_LOST)
    assert json.loads(json.dumps(outcome.evidence))["counters"]["disk_bytes"] == 0


def test_a_model_that_destroys_its_sandbox_fails_on_the_tokens_that_did_it() -> None:
    trajectory = attempt("```bash\ndestroy\n```")
    outcome = trajectory.outcome
    assert (outcome.verdict, outcome.cause) == (Verdict.FAILURE, Cause.SANDBOX_DESTROYED_BY_AGENT)
    assert trajectory.sampled_tokens > 0
    assert "cpu_s" in outcome.evidence["counters"]
    (turn,) = trajectory.turns
    assert (turn.commands, turn.observations) == (("destroy",), ())


def test_spans_cover_the_trajectory_without_gap_or_overlap() -> None:
    trajectory = attempt(SOLVE, "DONE")
    spans = trajectory.spans
    assert spans[0].start == trajectory.started
    assert spans[-1].end == trajectory.ended
    assert all(a.end == pytest.approx(b.start) for a, b in itertools.pairwise(spans))
    assert {"decode", "tool", "verify"} <= {str(s.stage) for s in spans}


def test_a_reply_that_publications_abort_goes_on_from_its_kept_tokens_within_its_budget() -> None:
    asked: list[tuple[int, Sampling]] = []

    class Aborting(FakeReplica):
        """Says no more than three tokens of the first reply at a time."""

        async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
            asked.append((len(tokens), sampling))
            start = len(tokens) - asked[0][0]
            if start > 6:
                return await super().generate(tokens, sampling, session)
            whole = await super().generate(tokens[: len(tokens) - start], sampling, session)
            rest = after(whole, start)
            return rest if start == 6 else replace(rest, finish="abort", **_first(rest, 3))

    reply = "```bash\nls\n```"
    whole, parts = attempt(reply, "DONE"), play(make_task("task"), reply, "DONE", replica=Aborting)
    assert [t.sampled_tokens for t in parts.turns] == [t.sampled_tokens for t in whole.turns]
    np.testing.assert_array_equal(parts.segments[0].tokens_T, whole.segments[0].tokens_T)
    assert [tokens - asked[0][0] for tokens, _ in asked[:3]] == [0, 3, 6]
    assert [sampling.max_tokens for _, sampling in asked] == [40, 37, 34, 40]
    assert [sampling.seed for _, sampling in asked] == [1, 4, 7, 1001]


def _first(completion: Completion, count: int) -> dict[str, Any]:
    return {name: getattr(completion, name)[:count] for name in ("tokens_T", "logprobs_T", "versions_T")}


def test_trained_ids_are_sampled_ids() -> None:
    trajectory = attempt(SOLVE, "DONE")
    (segment,) = trajectory.segments
    sampled = "".join(chr(t) for t in segment.tokens_T[segment.sampled_T])
    assert sampled == f"{SOLVE}{STOP}DONE{STOP}"
