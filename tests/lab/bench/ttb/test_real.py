"""The benchmark in wall time: plans become real text of their very lengths, and real runs do what was planned."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from muster import clock
from muster.engine.config import EmulatedEngineConfig
from muster.errors import ConfigError
from muster.lab.bench.ttb.arms import ALL, BASELINE
from muster.lab.bench.ttb.declaration import read as read_declaration
from muster.lab.bench.ttb.real.constants import Constants, at_pace, constants_of, predict, probe, without_overhead
from muster.lab.bench.ttb.real.declared import DeclaredBackend
from muster.lab.bench.ttb.real.real import ArmRun, batch_of, live, read_config, row, targets, wrong
from muster.lab.bench.ttb.real.run import RealSetup, collect
from muster.lab.bench.ttb.real.scale import Scale, scaled_engine, scaled_groups, scaled_world
from muster.lab.bench.ttb.real.table import render
from muster.lab.bench.ttb.real.words import (
    LEAST_OBSERVATION_TOKENS,
    LEAST_REPLY_TOKENS,
    Groups,
    Replies,
    WordTokenizer,
    command,
    instruction,
    least_prompt_tokens,
    placed,
    reply,
)
from muster.lab.collection.collection import CollectionWorld, FleetWorld, SandboxWorld, simulate
from muster.lab.collection.timed_sandbox import SandboxTimes, TimedBackend
from muster.lab.collection.workload import Lognormal, PlannedTurn, Program, WorkloadConfig, programs
from muster.lab.emulated.presets import preset
from muster.lab.faults import INITIAL
from muster.lab.result import BenchResult, Target
from muster.orchestrator.config import SchedulerConfig
from muster.rollout.actions import Commands, Fenced, describe
from muster.rollout.conversation import conversation
from muster.rollout.renderer import Renderer, Transcript
from muster.sandbox.port import Mount, Result
from muster.types import Completion, ImageSpec, Limits, Session, Stage

TOKENIZER = WordTokenizer()
RENDERER = Renderer(TOKENIZER)

turns = st.builds(
    PlannedTurn,
    reply_tokens=st.integers(LEAST_REPLY_TOKENS, 60),
    observation_tokens=st.integers(LEAST_OBSERVATION_TOKENS, 60),
    tool_s=st.floats(0, 400),
)
plans = st.builds(
    Program,
    turns=st.lists(turns, min_size=1, max_size=5).map(tuple),
    prompt_tokens=st.integers(least_prompt_tokens(), 300),
    verify_s=st.just(0.1),
    reward=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 1 << 31),
)


# --- words ----------------------------------------------------------------------------------------


@given(st.text())
def test_text_is_tokens_and_tokens_are_text(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.lists(st.integers(0, 9_999_999)))
def test_numbers_are_the_tokens_of_their_text(numbers: list[int]) -> None:
    assert TOKENIZER.numbers(np.array(numbers, np.int64)) == TOKENIZER.encode("".join(f" {n}" for n in numbers))


@given(st.text(alphabet="\x01\x02\x03\x04 12ab"))
def test_what_a_program_printed_ends_no_turn(text: str) -> None:
    roles = set(range(5))
    assert not roles & set(TOKENIZER.encode_plain(text))


@given(plans, st.integers(0, 7))
def test_a_reply_has_the_planned_tokens_and_holds_the_command(program: Program, sibling: int) -> None:
    for index, turn in enumerate(program.turns):
        ids = reply(program, index, sibling, TOKENIZER)
        assert len(ids) == turn.reply_tokens
        assert max(ids) < TOKENIZER.vocabulary
        action = Fenced().parse(RENDERER.text(ids))
        assert isinstance(action, Commands)
        assert f"```bash\n{action.commands[0]}\n```" == command(program, index, sibling)


@given(plans)
def test_an_observation_has_the_planned_tokens(program: Program) -> None:
    for turn in program.turns:
        shown = " ".join(str(n + 1) for n in range(turn.observation_tokens - 3))
        result = Result(output=f"{shown}\n", exit_code=0, duration_s=0.1)
        messages = Fenced().observe([describe(result, timeout_s=1, limit_chars=10_000)])
        assert len(RENDERER.observation(messages, stopped=True)) == turn.observation_tokens


@given(st.integers(0, 999), st.integers(least_prompt_tokens(), 2000))
def test_a_prompt_has_the_planned_tokens(task: int, tokens: int) -> None:
    assert len(RENDERER.prompt(conversation("zero_shot", instruction(task, tokens, TOKENIZER)))) == tokens


@settings(max_examples=30)
@given(plans, st.integers(0, 1000))
def test_any_replica_knows_the_turn_from_the_prompt_also_after_an_abort(program: Program, cut: int) -> None:
    session = Session(id="g000000.0")
    transcript = Transcript(RENDERER.prompt(conversation("zero_shot", instruction(0, 150, TOKENIZER))))
    for index in range(len(program.turns)):
        said = Replies(((program,),))(transcript.tokens, session, INITIAL)  # a replica that never saw the session
        assert list(said) == reply(program, index, 0, TOKENIZER)
        kept = said[: cut % len(said)]
        transcript.sampled(_completion(kept))
        rest = Replies(((program,),))(transcript.tokens, session, INITIAL)
        assert [*kept, *rest] == list(said)
        transcript.sampled(_completion(rest))
        transcript.observed(RENDERER.observation([{"role": "user", "content": "1 2 3"}], stopped=True))


def test_a_session_is_placed_by_its_name_also_when_its_group_was_replaced() -> None:
    assert placed("g000007.3", 32) == (7, 3)
    assert placed("g000033.1a2", 32) == (1, 1)


# --- scale ----------------------------------------------------------------------------------------


def test_a_scaled_engine_takes_a_fraction_of_the_time_for_a_fraction_of_the_tokens() -> None:
    declared = preset("h100x2-qwen-32b")
    scaled = scaled_engine(declared, Scale(time=30, tokens=5), longest=1000)
    long_s = declared.timing.decode_s(1000, 20, 400_000)
    assert scaled.timing.decode_s(200, 20, 80_000) * 30 == pytest.approx(long_s, rel=0.01)
    chunk_s = declared.timing.chunk_s(5000, 5000 * 20_000)
    assert scaled.timing.chunk_s(1000, 1000 * 4_000) * 30 == pytest.approx(chunk_s)
    assert scaled.kv_capacity_tokens == pytest.approx(declared.kv_capacity_tokens / 5, rel=0.01)


def test_the_built_in_declaration_can_be_scaled_and_keeps_its_programs() -> None:
    config = read_config()
    declared = read_declaration()
    batch = [p[:1] for p in programs(WorkloadConfig.model_validate(declared.workload), seed=0)]
    groups = scaled_groups(batch, config)
    for parts in ((), tuple(declared.parts)):
        world = declared.world(config.fleet, parts=parts)
        scaled = scaled_world(world, config, groups)
        assert scaled.sandboxes.slots == world.sandboxes.slots
        assert scaled.sandboxes.times.stop_s == pytest.approx(world.sandboxes.times.stop_s / config.time)
        assert scaled.schedule.order == world.schedule.order
    assert [len(p.turns) for g in groups for p in g] == [len(p.turns) for g in batch for p in g]
    tool_s = sum(p.tool_s for g in batch for p in g)
    assert sum(p.tool_s for g in groups for p in g) * config.time == pytest.approx(tool_s)


def test_a_configuration_that_cannot_be_names_its_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("time = 0\ntokens = 5\nfleet = 'memory'\nprocesses = 1\nruns = 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mine\.toml: time"):
        read_config(file)


# --- declared times -------------------------------------------------------------------------------


def test_a_declared_start_and_stop_take_their_time_and_a_verifiers_do_not() -> None:
    times = SandboxTimes(image_s=Lognormal(median=7), boot_s=Lognormal(median=5), stop_s=3)

    async def main() -> list[float]:
        inner = TimedBackend(SandboxTimes(boot_s=Lognormal(median=1), stop_s=0), seed=0)
        backend = DeclaredBackend(inner, times, share=lambda name: 0.5)
        laps = [clock.now()]
        image = await backend.prepare(ImageSpec(docker_image="a"))
        assert image == await backend.prepare(ImageSpec(docker_image="a"))
        laps.append(clock.now())
        sandbox = await backend.fork(image, limits=Limits(), label="one")
        laps.append(clock.now())
        await sandbox.close()
        await sandbox.close()
        laps.append(clock.now())
        tests = Mount(source=Path("/tests"), target="/tests")
        await backend.fork(image, limits=Limits(), label="verify", mounts=(tests,))
        laps.append(clock.now())
        return [float(x) for x in np.diff(laps)]

    assert clock.run_virtual(main()) == pytest.approx([7, 5, 3, 1])


def test_images_are_told_apart_where_the_backend_makes_the_same_of_them() -> None:
    async def main() -> None:
        backend = DeclaredBackend(TimedBackend(SandboxTimes(), seed=0), SandboxTimes(), share=lambda name: 0.5)
        one, two = [await backend.prepare(ImageSpec(docker_image=name)) for name in ("one", "two")]
        assert one.id != two.id

    clock.run_virtual(main())


# --- accounts -------------------------------------------------------------------------------------


def small(order: str = "group", **sandboxes: object) -> tuple[CollectionWorld, Groups]:
    """Four groups of two, seconds long in real time."""
    workload = WorkloadConfig(
        groups=4,
        group_size=2,
        turns=Lognormal(median=3, sigma=0.5, cap=5),
        prompt_tokens=Lognormal(median=150, sigma=0.1, cap=200),
        reply_tokens=Lognormal(median=15, sigma=0.3, cap=40),
        observation_tokens=Lognormal(median=20, sigma=0.5, cap=60),
        tool_s=Lognormal(median=0.02, sigma=0.5, cap=0.1),
        verify_s=Lognormal(median=0.02),
        max_context_tokens=1500,
    )
    engine = EmulatedEngineConfig()
    world = CollectionWorld(
        workload=workload,
        fleet=FleetWorld(replicas=2, engine=engine),
        sandboxes=SandboxWorld.model_validate({"slots": 4, "verifier_slots": 2, **sandboxes}),
        schedule=SchedulerConfig.model_validate({"groups_per_batch": 4, "group_size": 2, "slots": 4, "order": order}),
    )
    scale = Scale(time=1, tokens=1)
    groups = scaled_groups(programs(workload, seed=3), scale)
    fast = EmulatedEngineConfig.model_validate({**dict(engine), "timing": {"step_s": 0.001, "prefill_s": 1e-5}})
    return scaled_world(world.with_(fleet={"engine": fast}), scale, groups), groups


def test_what_did_not_end_as_planned_is_counted() -> None:
    world, groups = small()
    journal = simulate(world, seed=3, groups=groups).journal
    assert wrong(journal, groups) == 0
    first, *others = groups[0]
    other = replace(first, reward=1 - first.reward)
    assert wrong(journal, ((other, *others), *groups[1:])) == 1
    assert wrong(journal, groups[1:]) > 0
    shorter = replace(first, turns=(replace(first.turns[0], reply_tokens=99), *first.turns[1:]))
    assert wrong(journal, ((shorter, *others), *groups[1:])) == 1


def test_constants_make_a_prediction_later_than_the_plan() -> None:
    world, groups = small()
    plan = batch_of(simulate(world, seed=3, groups=groups).journal)
    slow = Constants(turn_s=0.5, boot_s=0.2, grade_s=1.0)
    predicted = batch_of(predict(world, groups, 3, slow).journal)
    longest = max(len(p.turns) for g in groups for p in g)
    assert predicted.ttb_s > plan.ttb_s + 0.5 * longest
    assert sum(predicted.parts.values()) == pytest.approx(predicted.ttb_s)


def test_constants_are_what_a_run_took_longer_than_planned() -> None:
    world, groups = small()
    longer = world.with_(
        sandboxes={"times": SandboxTimes(command_s=0.25, snapshot_s=0.5, boot_s=Lognormal(median=0.0))}
    )
    shorter = world.with_(sandboxes={"times": without_overhead(world.sandboxes.times)})
    real, planned = (simulate(w, 3, groups=groups).journal for w in (longer, shorter))
    found = constants_of(real, planned, groups, boot_s=0.1)
    assert found.turn_s == pytest.approx(0.25, abs=0.05)  # requests meet others in the batch than they would have met
    assert found.grade_s == pytest.approx(0.5 + 0.25, abs=0.05)  # the verifier's script is a command as well
    assert found.boot_s == 0.1


def test_the_probe_is_a_smaller_batch_of_the_same_kind() -> None:
    _, groups = small()
    probed = probe(groups)
    assert len(probed) == 1
    assert all(
        p.turns == q.turns[: len(p.turns)]
        for a, b in zip(probed, groups, strict=False)
        for p, q in zip(a, b, strict=True)
    )


def test_a_probe_at_half_the_pace_has_fewer_attempts_live() -> None:
    world, groups = small()
    turns = sum(len(p.turns) for siblings in groups for p in siblings)
    rate = turns / batch_of(simulate(world, 3, groups=groups).journal).ttb_s
    assert at_pace(world, groups, rate * 2, 3).schedule.slots == world.schedule.slots
    slower = at_pace(world, groups, rate / 2, 3)
    assert slower.schedule.slots == slower.sandboxes.slots == world.schedule.slots // 2


def lived(ttb_s: float, predicted_s: float, *, wrong: int = 0) -> ArmRun:
    return ArmRun(
        ttb_s=ttb_s,
        predicted_s=predicted_s,
        parts={Stage.TOOL: ttb_s},
        hit_rate=0.9,
        predicted_hit_rate=0.9,
        cpu_share=0.5,
        control_share=0.3,
        wrong=wrong,
    )


def test_the_cut_is_paired_by_run_and_a_prediction_that_is_late_is_as_wrong_as_one_that_is_early() -> None:
    runs = {
        BASELINE: [lived(100, 90), lived(300, 330), lived(50, 50)],
        ALL: [lived(20, 28), lived(90, 60), lived(30, 36)],
    }
    found = {t.name: t for t in targets(runs)}
    assert found["real_ttb_cut"].value == pytest.approx(0.7)
    assert found[f"prediction_error_{BASELINE}"].value == pytest.approx(0.1)
    assert found[f"prediction_error_{ALL}"].value == pytest.approx(1 / 3)
    assert not found[f"prediction_error_{ALL}"].met
    assert isinstance(found["wrong_outcomes"], Target) and found["wrong_outcomes"].met
    values = row(ALL, runs[ALL], time=10)
    assert values["declared_s"] == pytest.approx(300)
    assert values["tool_s"] == values["ttb_s"] == 30


def test_the_table_shows_both_arms_and_every_target() -> None:
    runs = {BASELINE: [lived(100, 90)], ALL: [lived(20, 28, wrong=1)]}
    result = BenchResult(name="ttb-real", rows=[row(a, x, time=60) for a, x in runs.items()], targets=targets(runs))
    console = Console(record=True, width=100, file=io.StringIO())
    render(result, console)
    text = console.export_text()
    assert "baseline" in text and "6000.0" in text and "1200.0" in text
    assert "target wrong_outcomes 1 <= 0 missed" in text
    assert sum(line.startswith("target ") for line in text.splitlines()) == len(result.targets)


# --- for real -------------------------------------------------------------------------------------


@pytest.mark.sandbox
def test_a_real_batch_plays_what_was_planned(tmp_path: Path) -> None:
    world, groups = small("launch", times=SandboxTimes(boot_s=Lognormal(median=0.2), stop_s=0.1), verify="in_place")
    played = live(
        world, groups, 3, Constants(turn_s=0.01, boot_s=0.02, grade_s=0.05), RealSetup(root=tmp_path, processes=1)
    )
    assert played.wrong == 0
    assert sum(played.parts.values()) == pytest.approx(played.ttb_s)
    assert played.parts[Stage.SANDBOX_START] >= 0.2
    assert played.predicted_s >= 0.2
    assert 0 < played.hit_rate < 1
    assert list(tmp_path.iterdir()) == [tmp_path / "sandboxes"]


@pytest.mark.sandbox
def test_an_interrupted_batch_leaves_nothing(tmp_path: Path) -> None:
    world, groups = small()
    endless = tuple(tuple(replace(p, turns=p.turns * 200) for p in siblings) for siblings in groups)

    async def main() -> None:
        batch = asyncio.ensure_future(collect(world, endless, 3, RealSetup(root=tmp_path, processes=1)))
        while not list(tmp_path.glob("sandboxes/images/*")):  # from here on sandboxes start, and any moment must do
            assert not batch.done()
            await clock.sleep(0.02)
        await clock.sleep(0.3)
        batch.cancel()
        assert isinstance((await asyncio.gather(batch, return_exceptions=True))[0], asyncio.CancelledError)
        assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []

    clock.run(main())
    assert not list(tmp_path.glob("sandboxes/runs/ttb*"))
    assert not list(tmp_path.glob("run-*"))
    deadline = clock.now() + 10  # what was killed is still listed for a moment
    while (left := _processes(str(tmp_path))) and clock.now() < deadline:
        clock.block(0.02)
    assert left == []


def _completion(ids: object) -> Completion:
    tokens_T = np.array(ids, np.int32)
    zeros_T = np.zeros(len(tokens_T), np.int32)
    return Completion(
        tokens_T=tokens_T,
        logprobs_T=zeros_T.astype(np.float32),
        versions_T=zeros_T,
        finish="stop",
        cached_tokens=0,
        replica="r",
    )


def _processes(text: str) -> list[str]:
    """Those whose command line names `text`."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found
