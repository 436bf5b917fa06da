"""No schedule of an emulated engine beats the bounds that its physics give; some reach them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster import clock
from muster.engine.config import EmulatedEngineConfig
from muster.engine.timing import EngineTiming
from muster.lab.emulated.replica import EmulatedReplica
from muster.observe.bounds.lower import Bounds, Capacity, Cohort, lower_bounds
from muster.observe.bounds.physics import EngineWork
from muster.observe.bounds.turns import Turns
from muster.types import Ints, Sampling, Session, Version

TIMING = EngineTiming(step_s=0.02, row_s=0.002, context_s=1e-4, prefill_s=0.002, pair_s=1e-6)


@dataclass(frozen=True)
class Play:
    """A program: its group, seconds before and after, and turns of (reply, command seconds, observation)."""

    group: int
    boot_s: float
    verify_s: float
    turns: tuple[tuple[int, float, int], ...]


@dataclass(frozen=True)
class Stage:
    """Stage of played programs. verify_in_slot: a slot is held to the end. together: siblings are on one replica."""

    server: EmulatedEngineConfig
    replicas: int
    slots: int
    prompt: int
    verify_in_slot: bool = True
    together: bool = True


def server(**changes: object) -> EmulatedEngineConfig:
    values: dict[str, object] = {
        "timing": TIMING,
        "max_model_len": 512,
        "max_step_tokens": 64,
        "kv_capacity_tokens": 4096,
        "block_tokens": 1,
    }
    return EmulatedEngineConfig.model_validate(values | changes)


def ids(seed: int, count: int) -> Ints:
    return np.random.default_rng(seed).integers(3, 999, count).astype(np.int32)


async def play(stage: Stage, order: tuple[Play, ...]) -> float:
    """Seconds until the last program has ended, started in this order as slots become free."""
    texts: dict[str, Ints] = {}

    def says(prompt: Ints, session: Session, version: Version) -> Ints:
        return texts[session.id][len(prompt) :]

    replicas = [EmulatedReplica(f"r{i}", stage.server, policy=says) for i in range(stage.replicas)]
    slots = asyncio.Semaphore(stage.slots)

    async def attempt(name: str, program: Play, replica: EmulatedReplica) -> None:
        length = stage.prompt
        whole = length + sum(reply + observation for reply, _, observation in program.turns)
        texts[name] = np.concatenate([ids(program.group, length), ids(int(name), whole)])
        async with slots:
            await clock.sleep(program.boot_s)
            for reply, tool_s, observation in program.turns:
                await replica.generate(texts[name][:length], Sampling(max_tokens=reply), Session(id=name))
                await clock.sleep(tool_s)
                length += reply + observation
            if stage.verify_in_slot:
                await clock.sleep(program.verify_s)
        if not stage.verify_in_slot:
            await clock.sleep(program.verify_s)

    placed = [program.group if stage.together else i for i, program in enumerate(order)]
    calls = [attempt(str(100 + i), p, replicas[placed[i] % stage.replicas]) for i, p in enumerate(order)]
    await asyncio.gather(*calls)
    return clock.now()


def bounds(stage: Stage, programs: tuple[Play, ...]) -> Bounds:
    groups: dict[int, list[list[tuple[int, int, float]]]] = {}
    for program in programs:
        turns: list[tuple[int, int, float]] = []
        length = stage.prompt
        for reply, tool_s, observation in program.turns:
            turns.append((length, reply, tool_s))
            length += reply + observation
        groups.setdefault(program.group, []).append(turns)
    by_group = [p for group in groups for p in programs if p.group == group]
    cohort = Cohort(
        output_tokens_N=np.array([float(sum(t[0] for t in p.turns)) for p in by_group]),
        prompt_tokens_N=np.zeros(len(by_group)),
        sandbox_s_N=np.array([p.boot_s for p in by_group]),
        tool_s_N=np.array([sum(t[1] for t in p.turns) for p in by_group]),
        verify_s_N=np.array([p.verify_s for p in by_group]),
        turns=Turns.of(list(groups.values())),
    )
    capacity = Capacity(
        server=stage.server,
        replicas=stage.replicas,
        sandbox_slots=stage.slots,
        kv_tokens=stage.server.kv_capacity_tokens * stage.replicas,
        hold_while_verifying=stage.verify_in_slot,
    )
    return lower_bounds(cohort, capacity)


TURNS = st.tuples(st.integers(1, 40), st.floats(0, 5), st.integers(0, 60))
PROGRAMS = st.builds(
    Play,
    group=st.integers(0, 1),
    boot_s=st.floats(0, 2),
    verify_s=st.floats(0, 2),
    turns=st.lists(TURNS, min_size=1, max_size=3).map(tuple),
)
STAGES = st.builds(
    Stage,
    server=st.builds(
        server,
        kv_capacity_tokens=st.sampled_from([544, 700, 4096]),
        max_running=st.integers(1, 4),
        block_tokens=st.sampled_from([1, 16]),
    ),
    replicas=st.integers(1, 2),
    slots=st.integers(1, 3),
    prompt=st.integers(1, 150),
    verify_in_slot=st.booleans(),
    together=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(stage=STAGES, programs=st.lists(PROGRAMS, min_size=1, max_size=3).map(tuple))
def test_no_order_of_starting_beats_any_bound(stage: Stage, programs: tuple[Play, ...]) -> None:
    best_s = min(clock.run_virtual(play(stage, order)) for order in permutations(programs))
    for name, bound_s in bounds(stage, programs).seconds.items():
        assert bound_s <= best_s * (1 + 1e-9) + 1e-6, name


@settings(deadline=None)
@given(stage=STAGES, program=PROGRAMS)
def test_one_program_alone_takes_exactly_its_path(stage: Stage, program: Play) -> None:
    alone = Stage(server(block_tokens=1), 1, 1, stage.prompt)
    limits = bounds(alone, (program,))
    assert limits.seconds["path"] == pytest.approx(clock.run_virtual(play(alone, (program,))), abs=1e-6)
    assert limits.limit_s == pytest.approx(limits.seconds["path"]), "and nothing else is larger"


def test_few_slots_on_a_busy_engine_are_close_to_the_joint_bound() -> None:
    """Sixteen that say as much, four at once: neither the engine alone nor the slots alone explain the time."""
    stage = Stage(server(max_step_tokens=512), 1, 4, 10)
    programs = tuple(Play(group, 0.0, 0.0, ((200, 0.0, 0),)) for group in range(16))
    limits, took_s = bounds(stage, programs), clock.run_virtual(play(stage, programs))
    assert limits.active == "joint"
    assert 1 <= took_s / limits.seconds["joint"] < 1.05
    assert took_s / max(limits.seconds["engine"], limits.seconds["slots"], limits.seconds["path"]) > 1.2


def test_a_short_cache_makes_the_joint_bound_count_what_must_be_computed_again() -> None:
    slow = TIMING.model_copy(update={"prefill_s": 0.05})
    programs = tuple(Play(group, 0.0, 0.0, ((2, 15.0, 300), *[(2, 15.0, 5)] * 8)) for group in range(4))
    joint_s: list[float] = []
    for tokens in (4096, 400):
        short = server(timing=slow, kv_capacity_tokens=tokens, max_model_len=390, block_tokens=4, max_step_tokens=512)
        stage = Stage(short, 1, 4, 20)
        joint_s.append(bounds(stage, programs).seconds["joint"])
        assert joint_s[-1] <= clock.run_virtual(play(stage, programs))
    assert joint_s[1] > 1.2 * joint_s[0]


def work(*gaps: tuple[int, float], context: int = 50) -> EngineWork:
    """A program for each gap: tokens of its own kept through a command of so many seconds."""
    groups = [[[(context, 1, 0.0), (context + own, 1, seconds), (context + own + 1, 1, 0.0)]] for own, seconds in gaps]
    return EngineWork(Turns.of(groups), len(gaps), server(), 1)


@settings(deadline=None)
@given(
    gaps=st.lists(st.tuples(st.integers(1, 300), st.floats(0.01, 50)), min_size=1, max_size=6),
    share=st.floats(0, 1),
)
def test_no_choice_of_what_to_keep_computes_less_again_than_the_knapsack(
    gaps: list[tuple[int, float]], share: float
) -> None:
    of_all = work(*gaps)
    room = share * sum(own * seconds for own, seconds in gaps)
    for chosen in range(1 << len(gaps)):
        kept = [gap for i, gap in enumerate(gaps) if chosen >> i & 1]
        if sum(own * seconds for own, seconds in kept) <= room:
            lost = [own for i, (own, _) in enumerate(gaps) if not chosen >> i & 1]
            again_s = sum(own * (TIMING.prefill_s + TIMING.pair_s * (50 + own / 2)) for own in lost)
            assert of_all.recomputed_s(room) <= again_s + 1e-9
    assert of_all.recomputed_s(1e9) == pytest.approx(0.0, abs=1e-9)


def test_what_follows_a_command_without_duration_is_kept_for_nothing() -> None:
    assert work((100, 0.0), (200, 0.0)).recomputed_s(0.0) == pytest.approx(0.0, abs=1e-12)


def test_a_groups_prompt_is_fresh_once_and_a_history_never() -> None:
    sibling = [(1000, 200, 1.0), (1700, 90, 2.0), (400, 5, 0.0)]
    turns = Turns.of([[sibling, sibling], [sibling]], common_tokens=300)
    assert turns.trajectory_T.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert turns.fresh_T.tolist() == [1000, 501, 1, 1, 501, 1, 700, 501, 1]
    assert turns.shared_T.tolist() == [999, 0, 0, 0, 0, 0, 0, 0, 0]
    assert turns.own_T.tolist() == [0, 700, 0] * 3
