from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from muster import clock
from muster.engine.config import EmulatedEngineConfig
from muster.lab.collection.collection import numbered
from muster.lab.collection.programs import Mishaps, PlannedAttempts, Texts, Verify, token_ids
from muster.lab.collection.timed_sandbox import SandboxTimes, TimedBackend
from muster.lab.collection.workload import Lognormal, PlannedTurn, Program
from muster.lab.emulated.replica import EmulatedReplica
from muster.rollout.spans import SpanRecorder
from muster.sandbox.config import SandboxConfig
from muster.sandbox.pool.pool import Pool
from muster.types import Cause, Graded, Launch, Session, Stage, Trajectory, Verdict

BLOCK = 16
PROGRAM = Program(
    turns=tuple(PlannedTurn(reply_tokens=32, observation_tokens=48, tool_s=2.0) for _ in range(5)),
    prompt_tokens=160,
    verify_s=3.0,
    reward=1.0,
)
ENGINE = EmulatedEngineConfig(max_model_len=4096, kv_capacity_tokens=65_536, block_tokens=BLOCK)


class Played:
    """One attempt, or several of one group one after the other, and what they used."""

    def __init__(self, *, mishaps: Mishaps | None = None, verify: Verify = "fork", times: SandboxTimes | None = None):
        self.texts = Texts()
        self.engine = EmulatedReplica("engine0", ENGINE, policy=self.texts)
        self.backend = TimedBackend(times or SandboxTimes(), seed=0)
        self.pool = Pool(self.backend, SandboxConfig(slots=2, warm=0, verifier_slots=1))
        self.released: list[Session] = []
        self.attempts = PlannedAttempts(
            program=lambda launch: PROGRAM,
            engine=self.engine,
            pool=self.pool,
            verify=verify,
            mishaps=mishaps,
            texts=self.texts,
            released=self.released.append,
        )

    async def run(self, sibling: int = 0, attempt: int = 0) -> Trajectory:
        id = f"g0.{sibling}a{attempt}"
        launch = Launch(id=id, group_id="g0", task=numbered(0), sibling=sibling, attempt=attempt)
        return await self.attempts.run(launch, SpanRecorder(id))


def seconds(trajectory: Trajectory) -> Counter[Stage]:
    spent: Counter[Stage] = Counter()
    for span in trajectory.spans:
        spent[Stage(span.stage)] += span.duration_s  # type: ignore[assignment]
    return spent


def play(make: Callable[[], Played] = Played) -> tuple[Played, Trajectory]:
    async def main() -> tuple[Played, Trajectory]:
        played = make()
        trajectory = await played.run()
        await played.pool.close()
        return played, trajectory

    return clock.run_virtual(main())


def test_an_attempt_plays_its_program_to_the_token_and_the_second() -> None:
    played, trajectory = play()
    assert isinstance(trajectory.outcome, Graded)
    assert trajectory.outcome.reward == 1.0
    assert trajectory.sampled_tokens == PROGRAM.sampled_tokens
    assert len(trajectory.segments[0]) == PROGRAM.final_tokens
    assert [t.sampled_tokens for t in trajectory.turns] == [32] * 5
    spent = seconds(trajectory)
    command_s = played.backend.times.command_s
    assert spent[Stage.TOOL] == pytest.approx(5 * (2.0 + command_s))
    assert spent[Stage.VERIFY] == pytest.approx(3.0 + 0.025 + 0.005 + command_s, abs=1e-6)
    assert played.backend.live == 0


def test_the_spans_tile_the_attempt_without_a_gap() -> None:
    _, trajectory = play()
    ends = [trajectory.started, *(s.end for s in trajectory.spans)]
    assert [s.start for s in trajectory.spans] == ends[:-1]
    assert ends[-1] == trajectory.ended


def test_the_hit_rate_of_a_lone_session_is_exact() -> None:
    played, trajectory = play()
    contexts = [t.prompt_tokens for t in trajectory.turns]
    assert contexts == [160 + 80 * i for i in range(5)]
    # all but the last sampled token of a turn is in the cache, in whole blocks
    known = [0, *((context + 32 - 1) // BLOCK * BLOCK for context in contexts[:-1])]
    assert [t.cached_tokens for t in trajectory.turns] == known
    statistics = clock.run_virtual(played.engine.statistics())
    assert statistics.cached_tokens == sum(known)
    assert statistics.prompt_tokens == sum(contexts)


def test_siblings_share_the_prompt_and_nothing_else() -> None:
    async def main() -> tuple[Trajectory, Trajectory]:
        played = Played()
        first, second = await played.run(0), await played.run(1)
        await played.pool.close()
        return first, second

    first, second = clock.run_virtual(main())
    assert second.turns[0].cached_tokens == (160 - 1) // BLOCK * BLOCK
    assert [t.cached_tokens for t in second.turns[1:]] == [t.cached_tokens for t in first.turns[1:]]


def test_what_no_cache_gave_back_is_recomputation() -> None:
    async def main() -> Trajectory:
        played = Played()
        run = asyncio.ensure_future(played.run())
        for _ in range(8):
            await clock.sleep(1.0)
            await played.engine.engine.reset_cache(preempt=False)
        trajectory = await run
        await played.pool.close()
        return trajectory

    lost, (_, kept) = clock.run_virtual(main()), play()
    assert seconds(kept)[Stage.RECOMPUTE] == 0
    assert seconds(lost)[Stage.RECOMPUTE] > 0
    assert sum(t.cached_tokens for t in lost.turns) < sum(t.cached_tokens for t in kept.turns)


def test_an_interrupted_reply_goes_on_from_its_kept_tokens() -> None:
    async def main() -> Trajectory:
        played = Played()
        run = asyncio.ensure_future(played.run())
        for _ in range(20):
            await clock.sleep(0.7)
            await played.engine.engine.abort(None)
        trajectory = await run
        await played.pool.close()
        return trajectory

    trajectory = clock.run_virtual(main())
    assert trajectory.sampled_tokens == PROGRAM.sampled_tokens
    assert trajectory.outcome.verdict is Verdict.SUCCESS


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("boot", Cause.SANDBOX_START_FAILED),
        ("sandbox", Cause.SANDBOX_LOST),
        ("engine", Cause.ENGINE_FAILED),
        ("verifier", Cause.VERIFIER_FAULT),
    ],
)
def test_a_mishap_ends_an_attempt_as_infrastructure_and_leaves_nothing(kind: str, cause: Cause) -> None:
    weights = {"boot": 0.0, "sandbox": 0.0, "engine": 0.0, "verifier": 0.0, kind: 1.0}
    played, trajectory = play(lambda: Played(mishaps=Mishaps(rate=1.0, **weights)))
    assert trajectory.outcome.verdict is Verdict.INFRA
    assert trajectory.outcome.cause is cause
    assert played.backend.live == 0
    assert played.pool.statistics().agent.live == 0
    assert [s.id for s in played.released] == [trajectory.id]
    assert played.attempts.sampled[trajectory.id] == trajectory.sampled_tokens


def test_mishaps_are_as_frequent_as_declared_and_the_same_every_time() -> None:
    mishaps = Mishaps(rate=0.1)
    programs = [Program(turns=PROGRAM.turns, prompt_tokens=1, verify_s=0, reward=0, seed=i) for i in range(2000)]
    befallen = [mishaps.of(p, attempt=0) for p in programs]
    assert sum(b is not None for b in befallen) == pytest.approx(200, abs=40)
    assert befallen == [mishaps.of(p, attempt=0) for p in programs]
    assert befallen != [mishaps.of(p, attempt=1) for p in programs]


def test_a_verifier_in_place_holds_the_agents_slot() -> None:
    played, trajectory = play(lambda: Played(verify="in_place"))
    assert played.pool.statistics().boots == 1
    assert seconds(trajectory)[Stage.VERIFY] == pytest.approx(3.0 + 0.002)
    assert play()[0].pool.statistics().boots == 2


def test_a_graceful_stop_keeps_its_slot_and_the_trajectory_does_not_wait_for_it() -> None:
    times = SandboxTimes(boot_s=Lognormal(median=23.0), stop_s=10.0)
    played, trajectory = play(lambda: Played(verify="in_place", times=times))
    assert played.backend.booting_s == pytest.approx(23.0)
    assert played.backend.stopping_s == 10.0
    assert trajectory.spans[-1].stage is Stage.VERIFY


def test_an_image_is_prepared_once_and_everybody_waits_for_it() -> None:
    async def main() -> tuple[float, float]:
        played = Played(times=SandboxTimes(image_s=Lognormal(median=20.0)))
        first = asyncio.ensure_future(played.run(0))
        await clock.sleep(5.0)
        second = await played.run(1)
        await first
        await played.pool.close()
        return second.spans[0].duration_s, played.backend.booting_s

    waited_s, booting_s = clock.run_virtual(main())
    assert waited_s == pytest.approx(15.0)
    assert booting_s == pytest.approx(4 * 0.025)


def test_any_cut_of_a_text_is_the_same_text() -> None:
    whole = token_ids(5, 0, 100)
    assert np.array_equal(np.concatenate([token_ids(5, 0, 30), token_ids(5, 30, 70)]), whole)
    assert not np.array_equal(token_ids(6, 0, 100), whole)
