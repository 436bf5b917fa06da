"""Keep points: what is lost to infrastructure goes on where it was kept; over fakes on the virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories import make_task
from muster import clock
from muster.journal import DropRow, EventRow, GroupRow, Journal, KeepRow, TrajectoryRow
from muster.lab.fakes.engine import FakeReplica
from muster.lab.fakes.sandbox import FakeBackend, FakeDisk, FakeSandbox
from muster.lab.fakes.verifier import FakeVerifier
from muster.orchestrator.dispatch import Dispatcher
from muster.orchestrator.keeps import Keeps
from muster.orchestrator.resume import standing
from muster.rollout.agent import Agent
from muster.rollout.attempt import Rollout
from muster.rollout.keeping import own_tokens
from muster.rollout.renderer import Renderer
from muster.sandbox.config import SandboxConfig
from muster.sandbox.pool.pool import Pool
from muster.sandbox.port import Snapshot
from muster.types import Cause, Ints, Kept, Launch, Session, Task, TaskStep, Trajectory, Verdict, Version
from rollout.playing import ROOMY
from rollout.tokens import STOP, CharTokenizer

TURNS = 6
WHOLE = "".join(f"{n}\n" for n in range(TURNS))
CONFIG = ROOMY.model_copy(update={"max_turns": 20, "max_context_tokens": 9000, "max_tokens": 4000})


def launch(attempt: int = 0, **changes: Any) -> Launch:
    suffix = f"a{attempt}" if attempt else ""
    fields: dict[str, Any] = {"id": f"g0.0{suffix}", "group_id": "g0", "sibling": 0, "attempt": attempt}
    return Launch(**{**fields, "task": make_task(), **changes})


class Ground:
    """Processes of one run, one after the other: a journal and a disk that outlive them.

    The model appends a line to a file in each of its turns, takes two seconds for it, and is done after six.
    """

    def __init__(self, *, every_s: float = 3.0, commands: Sequence[str] = (), budget_s: float = 120.0) -> None:
        self.journal = Journal.in_memory(meta={})
        self.journal.record(GroupRow(id="g0", task_id="task", submission=0, version=0, admitted_at=0.0))
        self.disk = FakeDisk()
        self.every_s = every_s
        self.config = CONFIG.model_copy(update={"time_budget_s": budget_s})
        self.commands = [*commands, *(f"sleep 2; echo {n} >> file" for n in range(len(commands), TURNS))]
        self.final: list[str] = []
        self.released: list[str] = []
        self.forks: list[FakeSandbox] = []
        self.dispatcher = self.process()

    def process(self) -> Dispatcher:
        """A new one, where the journal says that the run stands."""
        backend = Forks(self.forks, disk=self.disk)
        keeps = Keeps(self.journal, backend, self.every_s)
        self.engine = FakeReplica("engine0", policy=self._policy)

        def score(task: Task, state: Snapshot) -> float:
            self.final.append((backend.file(state, "/app/file") or b"").decode())
            return 1.0

        rollout = Rollout(
            agent=Agent(engine=self.engine, renderer=Renderer(CharTokenizer()), config=self.config),
            pool=Pool(backend, SandboxConfig(warm=0)),
            verifier=FakeVerifier(score),
            released=lambda session: self.released.append(session.id),
            keeper=keeps,
        )
        self.dispatcher = Dispatcher(self.journal, rollout, keeps)
        return self.dispatcher

    def _policy(self, tokens: Ints, session: Session, version: Version) -> Sequence[int]:
        turn = "".join(map(chr, tokens.tolist())).count("```bash\nsleep")
        text = f"```bash\n{self.commands[turn]}\n```" if turn < TURNS else "DONE"
        return [ord(c) for c in text + STOP]

    async def run(self, it: Launch, **options: Any) -> Trajectory:
        return await self.dispatcher.run(it, "train", 1, **options)

    async def lose(self, it: Launch, at_s: float) -> Trajectory:
        """Its sandbox vanishes after so many seconds."""
        running = asyncio.ensure_future(self.run(it))
        await clock.sleep(at_s)
        self.forks[-1].lose()
        return await running

    async def kill(self, it: Launch, at_s: float) -> None:
        """The process dies: what it had not committed is gone, and nobody tells the journal."""
        before, running = self.journal, asyncio.ensure_future(self.run(it))
        await clock.sleep(at_s)
        self.journal = before.copied()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        self.process()

    def kept(self) -> Kept:
        (row,) = self.journal.rows(KeepRow)
        return row.kept()

    def graded(self) -> list[TrajectoryRow]:
        return self.journal.rows(TrajectoryRow, "reward IS NOT NULL")

    def said(self) -> list[str]:
        return [event.message for event in self.journal.rows(EventRow, "kind = 'relaunched'")]

    def check_nothing_is_left(self) -> None:
        assert (self.journal.count(KeepRow), len(self.disk.kept)) == (0, 0)


class Forks(FakeBackend):
    """Notes its sandboxes, so that a test can lose one."""

    def __init__(self, forks: list[FakeSandbox], *, disk: FakeDisk) -> None:
        super().__init__(disk=disk)
        self._forks = forks

    async def fork(self, snapshot: Snapshot, **options: Any) -> FakeSandbox:
        self._forks.append(await super().fork(snapshot, **options))
        return self._forks[-1]


def played(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    clock.run_virtual(body())


def check_continues(kept: Kept, after: Trajectory) -> None:
    """Bit for bit, and to its end as if nothing had happened."""
    length = len(kept.segment)
    (segment,) = after.segments
    for name in ("tokens_T", "logprobs_T", "versions_T", "sampled_T"):
        assert np.array_equal(getattr(segment, name)[:length], getattr(kept.segment, name)), name
    assert after.turns[: len(kept.turns)] == kept.turns
    assert [turn.index for turn in after.turns] == [*range(TURNS + 1)]
    assert after.outcome.verdict is Verdict.SUCCESS
    assert after.outcome.evidence["continued"] == {
        "launch": kept.launch,
        "snapshot": kept.snapshot,
        "turns": len(kept.turns),
        "sampled_tokens": kept.sampled_tokens,
    }


def test_an_attempt_that_loses_its_sandbox_late_goes_on_from_its_last_keep_point() -> None:
    async def body() -> None:
        ground = Ground()
        lost = await ground.lose(launch(), at_s=13.0)
        assert lost.outcome.cause is Cause.SANDBOX_LOST
        kept = ground.kept()
        assert (kept.launch, len(kept.turns)) == ("g0.0", 4)
        again = await ground.run(launch(1))
        check_continues(kept, again)
        assert again.snapshots[1] == kept.snapshot
        assert again.ended - again.started < lost.ended - lost.started
        assert ground.final == [WHOLE]
        assert ground.released == ["g0.0", "g0.0a1"]
        ground.check_nothing_is_left()

    played(body)


def test_a_killed_run_goes_on_from_the_keep_point_in_its_journal() -> None:
    async def body() -> None:
        ground = Ground()
        await ground.kill(launch(), at_s=13.0)
        kept = ground.kept()
        check_continues(kept, await ground.run(launch(1)))
        assert ground.final == [WHOLE]
        ground.check_nothing_is_left()

    played(body)


def test_one_that_is_killed_again_and_again_comes_to_its_end_and_no_token_counts_twice() -> None:
    async def body() -> None:
        ground = Ground(every_s=2.0)
        for attempt in range(4):
            await ground.kill(launch(attempt), at_s=4.0)
            interrupted = standing(ground.journal, Path("/nowhere"), {}).interrupted
            drops = [DropRow(id=id, reason="interrupted", at=0.0, sampled_tokens=n) for id, n in interrupted.items()]
            ground.journal.record(*drops)
        kept = ground.kept()
        assert kept.launch != "g0.0"
        again = await ground.run(launch(4))
        check_continues(kept, again)
        dropped = sum(drop.sampled_tokens for drop in ground.journal.rows(DropRow))
        assert dropped + own_tokens(again) == again.sampled_tokens
        assert ground.final == [WHOLE]

    played(body)


def test_the_time_that_was_used_before_is_used_and_what_was_lost_is_not_charged() -> None:
    async def body() -> None:
        whole = await Ground().run(launch())
        ground = Ground()
        await ground.lose(launch(), at_s=13.0)
        before = ground.kept()
        own_s = sum(t.duration_s + t.sampled_tokens / CONFIG.reference_tokens_per_s for t in before.turns)
        assert before.own_s == pytest.approx(own_s)
        again = await ground.run(launch(1))
        assert [t.duration_s for t in again.turns] == pytest.approx([t.duration_s for t in whole.turns])

        cut = await Ground(budget_s=before.own_s + 3.0).run(launch())
        ground = Ground(budget_s=before.own_s + 3.0)
        await ground.lose(launch(), at_s=13.0)
        again = await ground.run(launch(1))
        assert len(again.turns) == len(cut.turns) < len(whole.turns)
        assert [t.duration_s for t in again.turns] == pytest.approx([t.duration_s for t in cut.turns])

    played(body)


def test_a_resumed_run_counts_only_the_launches_that_got_no_further() -> None:
    async def body() -> None:
        ground = Ground(every_s=2.0)
        for attempt, at_s in enumerate((5.0, 5.0, 1.0)):  # the first two each make a keep point
            await ground.lose(launch(attempt), at_s=at_s)
        await ground.kill(launch(3), at_s=1.0)
        (group,) = standing(ground.journal, Path("/nowhere"), {"task": make_task()}).groups
        assert group.fruitless == {0: 1}, "not what was killed with its process"
        assert group.reached_s == {0: pytest.approx(ground.kept().own_s)}
        assert group.launches == {0: 4}

    played(body)


def test_when_the_state_is_gone_it_begins_at_the_beginning_and_says_so() -> None:
    async def body() -> None:
        ground = Ground()
        await ground.kill(launch(), at_s=13.0)
        ground.disk.kept.clear()
        again = await ground.run(launch(1))
        assert "continued" not in again.outcome.evidence
        assert ground.said() == ["g0.0a1 begins at the beginning: its snapshot is gone"]
        assert ground.final == [WHOLE]
        ground.check_nothing_is_left()

    played(body)


def test_a_keep_point_whose_tokens_are_too_old_is_not_used() -> None:
    async def body() -> None:
        ground = Ground()
        await ground.kill(launch(), at_s=13.0)
        again = await ground.run(launch(1), fresh=lambda version: version > 0)
        assert "continued" not in again.outcome.evidence
        assert "too stale" in ground.said()[0]
        ground.check_nothing_is_left()

    played(body)


def test_a_keep_point_of_a_task_that_was_changed_meanwhile_is_not_used() -> None:
    async def body() -> None:
        ground = Ground()
        await ground.kill(launch(), at_s=13.0)
        again = await ground.run(launch(1, task=replace(make_task(), digest="another")))
        assert "continued" not in again.outcome.evidence
        assert "its task has changed" in ground.said()[0]
        ground.check_nothing_is_left()

    played(body)


def test_a_model_that_destroyed_its_sandbox_is_not_brought_back() -> None:
    async def body() -> None:
        ground = Ground(commands=["sleep 2", "sleep 2", "sleep 2", "sleep 2; destroy"])
        ended = await ground.run(launch())
        assert ended.outcome.cause is Cause.SANDBOX_DESTROYED_BY_AGENT
        ground.check_nothing_is_left()

    played(body)


def test_a_point_from_which_every_continuation_is_lost_is_given_up() -> None:
    async def body() -> None:
        ground = Ground(every_s=9.0)
        await ground.lose(launch(), at_s=13.0)
        point = ground.kept()
        for attempt in (1, 2):
            lost = await ground.lose(launch(attempt), at_s=1.0)
            assert lost.outcome.evidence["continued"]["snapshot"] == point.snapshot
        again = await ground.run(launch(3))
        assert "continued" not in again.outcome.evidence
        ground.check_nothing_is_left()

    played(body)


def test_what_was_given_up_leaves_nothing_and_what_was_stopped_goes_on() -> None:
    async def body() -> None:
        for reason in ("surplus", None):
            ground = Ground()
            running = asyncio.ensure_future(ground.run(launch()))
            await clock.sleep(13.0)
            ground.dispatcher.cancel("g0.0", reason) if reason else running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            (drop,) = ground.journal.rows(DropRow)
            assert drop.sampled_tokens > 0
            again = await ground.run(launch(1))
            assert ("continued" in again.outcome.evidence) == (reason is None)
            ground.check_nothing_is_left()

    played(body)


def test_a_group_that_ended_gives_back_what_its_lost_siblings_kept() -> None:
    async def body() -> None:
        ground = Ground()
        await ground.lose(launch(), at_s=13.0)
        ground.dispatcher.forget("g0")
        await ground.dispatcher.finish()
        ground.check_nothing_is_left()

    played(body)


def test_a_keep_point_that_a_killed_process_had_no_time_to_give_back_is_given_back_by_the_next() -> None:
    async def body() -> None:
        ground = Ground()
        await ground.lose(launch(), at_s=13.0)
        ground.journal.record(
            GroupRow(id="g0", task_id="task", submission=0, version=0, admitted_at=0.0, state="ready")
        )
        await ground.process().finish()
        ground.check_nothing_is_left()

    played(body)


def test_short_attempts_evaluations_and_tasks_of_several_steps_keep_nothing() -> None:
    async def body() -> None:
        ground = Ground(every_s=100.0)
        await ground.run(launch())
        ground = Ground()
        await ground.dispatcher.run(launch(), "evaluate", 1)
        task = make_task()
        steps = tuple(TaskStep(name=n, instruction="Do it.", verifier=task.verifier) for n in ("one", "two"))
        await ground.run(launch(task=replace(task, steps=steps)))
        assert ground.disk.made == 0

    played(body)


def test_nothing_is_kept_while_the_agent_has_something_running() -> None:
    async def body() -> None:
        ground = Ground(commands=["sleep 2; sleep 7 &"])
        await ground.lose(launch(), at_s=8.0)
        assert ground.disk.made == 0
        await ground.lose(launch(1), at_s=14.0)
        assert len(ground.kept().turns) > 3

    played(body)


@settings(max_examples=40, deadline=None)
@given(
    ends=st.lists(st.tuples(st.sampled_from(["lose", "kill"]), st.floats(0.1, 20.0)), min_size=1, max_size=4),
    every_s=st.floats(0.5, 12.0),
)
def test_whatever_is_lost_and_when_the_end_is_that_of_an_undisturbed_attempt(
    ends: list[tuple[str, float]], every_s: float
) -> None:
    async def body() -> None:
        whole = await Ground().run(launch())
        ground = Ground(every_s=every_s)
        for attempt, (how, at_s) in enumerate(ends):
            await (ground.kill if how == "kill" else ground.lose)(launch(attempt), at_s)
            if ground.graded():
                break
        if not ground.graded():
            await ground.run(launch(len(ends)))
        await ground.dispatcher.finish()
        (row,) = ground.graded()
        (segment,), (undisturbed,) = row.trajectory().segments, whole.segments
        assert np.array_equal(segment.tokens_T, undisturbed.tokens_T)
        assert np.array_equal(segment.logprobs_T, undisturbed.logprobs_T)
        assert ground.final[-1] == WHOLE
        assert ground.journal.count(KeepRow) == 0
        assert len(ground.disk.kept) <= sum(how == "kill" for how, _ in ends), "but for a word that died with it"

    played(body)
