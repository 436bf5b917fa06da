"""Lower bounds in a declared world, which no scheduler could beat: its programs against its fleet and its sandboxes.

    world, programs ─► Cohort (work, perfect prefix reuse) + Capacity (rates of an undisturbed engine) ─► Bounds

Law: pure. The bound is of the work and the machines, not of how they are used: routing, order and warm forks of the
world do not enter, and a sandbox is counted as ready after `boot_s`, whatever booted it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from muster.lab.collection.collection import CollectionWorld, Groups
from muster.lab.collection.workload import Program
from muster.observe.bounds.lower import Array, Bounds, Capacity, Cohort, lower_bounds
from muster.observe.bounds.turns import Turns


def planned_bounds(world: CollectionWorld, groups: Groups, *, boot_s: float = 0.0, overlapping: bool = False) -> Bounds:
    """Lower bounds, in seconds, on collecting `groups` once.

    boot_s: the least that a sandbox takes to be ready; 0 when nothing is known of it. overlapping: other batches are
    collected meanwhile.
    """
    return lower_bounds(planned_cohort(groups, boot_s=boot_s), planned_capacity(world), overlapping=overlapping)


def planned_cohort(groups: Groups, *, boot_s: float = 0.0) -> Cohort:
    """The work of these programs. A group's prompt is computed once, by its first sibling."""
    programs = [program for group in groups for program in group]
    prompts = [p.prompt_tokens if i == 0 else 0 for group in groups for i, p in enumerate(group)]

    def each(amount: Callable[[Program], float]) -> Array:
        return np.array([amount(p) for p in programs], np.float64)

    return Cohort(
        output_tokens_N=each(lambda p: p.sampled_tokens),
        prompt_tokens_N=np.array(prompts, np.float64) + each(_observed_tokens),
        sandbox_s_N=np.full(len(programs), boot_s),
        tool_s_N=each(lambda p: p.tool_s),
        verify_s_N=each(lambda p: p.verify_s),
        context_decode_N=each(lambda p: _over_contexts(p, [t.reply_tokens for t in p.turns])),
        context_tool_N=each(lambda p: _over_contexts(p, [t.tool_s for t in p.turns])),
        turns=Turns.of([[_turns(p) for p in group] for group in groups], common_tokens=programs[0].common_tokens),
    )


def planned_capacity(world: CollectionWorld) -> Capacity:
    """Rates of engines that do nothing else, at the shortest contexts: none of them can be exceeded."""
    engine, replicas = world.fleet.config(), world.fleet.replicas
    return Capacity(
        stream_decode_rate=engine.stream_decode_rate(),
        decode_rate=engine.decode_rate() * replicas,
        stream_prefill_rate=engine.prefill_rate(),
        prefill_rate=engine.prefill_rate() * replicas,
        sandbox_slots=world.sandboxes.slots,
        verifier_slots=world.sandboxes.verifier_slots if world.sandboxes.verify == "fork" else None,
        kv_tokens=engine.kv_capacity_tokens * replicas,
        boots_per_s=world.sandboxes.boots_per_s,
        hold_while_verifying=world.sandboxes.verify == "in_place",
        server=engine,
        replicas=replicas,
    )


def _turns(program: Program) -> list[tuple[int, int, float]]:
    """(context, reply, seconds of the command) of each turn."""
    turns: list[tuple[int, int, float]] = []
    context = program.prompt_tokens
    for turn in program.turns:
        turns.append((context, turn.reply_tokens, turn.tool_s))
        context += turn.reply_tokens + turn.observation_tokens
    return turns


def _observed_tokens(program: Program) -> int:
    """Number of observed tokens. What the last command shows is never computed."""
    return sum(turn.observation_tokens for turn in program.turns[:-1])


def _over_contexts(program: Program, amounts: Sequence[float]) -> float:
    """Σ over turns of the context at its beginning times `amounts`."""
    context, total = program.prompt_tokens, 0.0
    for turn, amount in zip(program.turns, amounts, strict=True):
        total += context * amount
        context += turn.reply_tokens + turn.observation_tokens
    return total
