"""A declared world made small enough to be lived on this machine: less time, fewer tokens, the same proportions.

    seconds / time_scale: commands, verification, cold start, stop, engine steps        what is waited for
    tokens / token_scale: prompts, replies, observations, cache; a token's time x token_scale
    turns, groups, siblings, slots, replicas: as declared                               what is decided

Law: pure. One factor for all seconds, one for all tokens: cold starts stay as long beside commands, and recomputed
prompts beside replies, as they were declared. What a command needs at least to be real text is the floor of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from muster.engine.config import EmulatedEngineConfig
from muster.engine.timing import EngineTiming
from muster.lab.bench.ttb.real.words import LEAST_OBSERVATION_TOKENS, LEAST_REPLY_TOKENS, Groups, least_prompt_tokens
from muster.lab.collection.collection import CollectionWorld
from muster.lab.collection.timed_sandbox import SandboxTimes
from muster.lab.collection.workload import Lognormal, PlannedTurn, Program, WorkloadConfig


class Scale(BaseModel):
    """Scale: how much smaller. Example: `Scale(time=25, tokens=5)`"""

    model_config = ConfigDict(frozen=True, extra="forbid")

    time: float = Field(gt=0, description="declared seconds in one of ours")
    tokens: float = Field(gt=0, description="declared tokens in one of ours")


def scaled_groups(groups: Sequence[Sequence[Program]], scale: Scale) -> Groups:
    """The same programs, in our seconds and tokens."""
    return tuple(tuple(_program(program, scale) for program in siblings) for siblings in groups)


def scaled_world(world: CollectionWorld, scale: Scale, groups: Groups) -> CollectionWorld:
    """The same world for such programs. One batch, at weights that are published before it opens."""
    engine = scaled_engine(world.fleet.config(), scale, longest=max(p.final_tokens for g in groups for p in g))
    concurrency, slice_s = world.schedule.concurrency, world.sandboxes.slice_s
    return world.with_(
        workload=_workload(world.workload, scale),
        fleet={"engine": engine, "overrides": {}},
        sandboxes={"times": _times(world.sandboxes.times, scale), "slice_s": slice_s and slice_s / scale.time},
        schedule={
            "concurrency": concurrency.model_copy(update={"interval_s": concurrency.interval_s / scale.time}),
        },
        training={
            "steps": 1,
            "step_s": 0.0,
            "export_s": 0.0,
            "watch_interval_s": max(0.25, world.training.watch_interval_s / scale.time),
        },
    )


def scaled_engine(engine: EmulatedEngineConfig, scale: Scale, *, longest: int) -> EmulatedEngineConfig:
    """The same server: as many requests, prompts and replies a second of ours as it would serve in `time` seconds.

    Steps hold as many prompt tokens as before, so that a reply is held up by a neighbour's prompt as long as before.
    """
    timing, one = engine.timing, scale.tokens / scale.time
    capacity = round(engine.kv_capacity_tokens / scale.tokens)
    block = max(1, round(engine.block_tokens / scale.tokens))
    fits = capacity // block * block - 2 * block
    return engine.model_copy(
        update={
            "timing": EngineTiming(
                step_s=timing.step_s * one,
                row_s=timing.row_s * one,
                context_s=timing.context_s * one * scale.tokens,
                prefill_s=timing.prefill_s * one,
                pair_s=timing.pair_s * one * scale.tokens,
            ),
            "kv_capacity_tokens": capacity,
            "block_tokens": block,
            "max_model_len": min(fits, max(longest + 2, round(engine.max_model_len / scale.tokens))),
            "vocabulary": 1 << 30,
            "stage_s": 0.0,
            "commit_s": 0.0,
        }
    )


def _workload(workload: WorkloadConfig, scale: Scale) -> dict[str, Any]:
    """Its distributions; of its programs only those of earlier epochs are drawn from them, to be remembered."""
    return {
        "prompt_tokens": _smaller(workload.prompt_tokens, scale.tokens),
        "reply_tokens": _smaller(workload.reply_tokens, scale.tokens),
        "observation_tokens": _smaller(workload.observation_tokens, scale.tokens),
        "max_context_tokens": max(16, int(workload.max_context_tokens / scale.tokens)),
        "tool_s": _smaller(workload.tool_s, scale.time),
        "verify_s": _smaller(workload.verify_s, scale.time),
    }


def _times(times: SandboxTimes, scale: Scale) -> SandboxTimes:
    return SandboxTimes(
        image_s=_smaller(times.image_s, scale.time),
        boot_s=_smaller(times.boot_s, scale.time),
        command_s=times.command_s / scale.time,
        snapshot_s=times.snapshot_s / scale.time,
        stop_s=times.stop_s / scale.time,
    )


def _smaller(drawn: Lognormal, factor: float) -> Lognormal:
    return Lognormal(median=drawn.median / factor, sigma=drawn.sigma, cap=drawn.cap / factor)


def _program(program: Program, scale: Scale) -> Program:
    return replace(
        program,
        turns=tuple(_turn(turn, scale) for turn in program.turns),
        prompt_tokens=max(least_prompt_tokens(), round(program.prompt_tokens / scale.tokens)),
        verify_s=program.verify_s / scale.time,
    )


def _turn(turn: PlannedTurn, scale: Scale) -> PlannedTurn:
    return PlannedTurn(
        reply_tokens=max(LEAST_REPLY_TOKENS, round(turn.reply_tokens / scale.tokens)),
        observation_tokens=max(LEAST_OBSERVATION_TOKENS, round(turn.observation_tokens / scale.tokens)),
        tool_s=turn.tool_s / scale.time,
    )
