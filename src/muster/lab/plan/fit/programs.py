"""A run's trajectories as programs that can be played again: what each turn asked of engine, sandbox and verifier.

    TrajectoryRow, spans ─► Program                    group by group, in order of submission ─► draw(seed)

Law: pure over rows. What is kept is work (tokens, seconds of commands and of the verifier), never waiting: queues are
the simulation's to find. Only graded trajectories are programs; the others are a rate (`Mishaps`).

A draw is the recorded groups themselves (number 0), or as many of them drawn with replacement: the spread over draws
says what another sample of the same work might have given (the bootstrap, Efron 1979). Whole groups are drawn, because
siblings are alike, and because a group's rewards decide whether it has a gradient.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from muster.journal import SpanRow, TrajectoryRow
from muster.lab.collection.workload import PlannedTurn, Program
from muster.types import Cause, Stage, Verdict

Spans = Mapping[str, Sequence[SpanRow]]
Groups = tuple[tuple[Program, ...], ...]

_GRADED = (Verdict.SUCCESS, Verdict.FAILURE)
_ENOUGH = 0.5  # share of a group's siblings that must have been graded: the first to end are the short ones


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSeconds:
    """Seconds that a trajectory spent on its sandbox, apart from commands. None: the journal does not show it."""

    image_s: float | None
    boot_s: float | None
    snapshot_s: float | None


def sandbox_seconds(spans: Sequence[SpanRow]) -> SandboxSeconds:
    """Spans come in order: [image] ─► queue ─► boot ─► turns ─► freeze ─► queue ─► verify."""
    stages = [Stage(s.stage) for s in spans]
    lengths = [s.end - s.start for s in spans]
    starts = [i for i, stage in enumerate(stages) if stage is Stage.SANDBOX_START]
    asked = stages.index(Stage.SANDBOX_QUEUE) if Stage.SANDBOX_QUEUE in stages else None
    boot = next((i for i in starts if asked is None or i > asked), None)
    image = next((i for i in starts if asked is not None and i < asked), None)
    freeze = stages.index(Stage.VERIFY) if Stage.VERIFY in stages else None
    return SandboxSeconds(
        image_s=None if image is None else lengths[image],
        boot_s=None if boot is None else lengths[boot],
        snapshot_s=None if freeze is None else lengths[freeze],
    )


def program_of(row: TrajectoryRow, spans: Sequence[SpanRow], *, verifier_boot_s: float, common_tokens: int) -> Program:
    """Program of this graded trajectory. `verifier_boot_s` of its verification is not its own work but the pool's."""
    turns = row.turns
    tool_s = sum(s.end - s.start for s in spans if s.stage == Stage.TOOL)
    # a command's span is longer than the command: what is around it is spread over the turns
    around_s = max(0.0, tool_s - sum(t["duration_s"] for t in turns)) / len(turns)
    observed = [max(0, b["prompt_tokens"] - a["prompt_tokens"] - a["sampled_tokens"]) for a, b in pairwise(turns)]
    verify_s = sum(s.end - s.start for s in spans if s.stage == Stage.VERIFY)
    verify_s -= (sandbox_seconds(spans).snapshot_s or 0.0) + verifier_boot_s
    assert row.reward is not None, "only graded trajectories are programs"
    return Program(
        turns=tuple(
            PlannedTurn(
                reply_tokens=turn["sampled_tokens"],
                observation_tokens=observation,
                tool_s=turn["duration_s"] + around_s,
            )
            for turn, observation in zip(turns, [*observed, 0], strict=True)
        ),
        prompt_tokens=max(1, turns[0]["prompt_tokens"]),
        common_tokens=min(common_tokens, turns[0]["prompt_tokens"]),
        verify_s=max(0.0, verify_s),
        reward=row.reward,
    )


def graded_groups(rows: Iterable[TrajectoryRow], order: Sequence[str]) -> list[list[TrajectoryRow]]:
    """The graded members of each group, in the groups' `order`; groups of which too few were graded are left out."""
    members: dict[str, list[TrajectoryRow]] = {id: [] for id in order}
    launched: dict[str, set[int]] = {id: set() for id in order}
    for row in rows:
        if row.group_id in members and row.turns:
            launched[row.group_id].add(row.sibling)
            if row.verdict in _GRADED:
                members[row.group_id].append(row)
    size = max((len(siblings) for siblings in launched.values()), default=0)
    least = max(1.0, _ENOUGH * size)
    return [sorted(own, key=lambda t: t.sibling) for own in members.values() if len(own) >= least]


def common_tokens(groups: Sequence[Sequence[TrajectoryRow]]) -> int:
    """Tokens at the beginning of the prompt that all groups share, as the engine's prefix cache showed: what most
    groups found in it at their first turn, before any sibling of theirs had been computed."""
    found = [min(t.turns[0]["cached_tokens"] for t in own) for own in groups]
    return int(np.median(found)) if found else 0


def draw(groups: Groups, number: int, group_size: int) -> Groups:
    """Draw `number` of the recorded groups, each of `group_size` siblings; the same in every process.

    A smaller group takes a part of the recorded siblings, a larger one takes some of them again.
    """
    rng = np.random.default_rng([number, len(groups)])
    chosen = range(len(groups)) if number == 0 else rng.integers(len(groups), size=len(groups)).tolist()
    return tuple(_resized(groups[g], group_size, position, rng) for position, g in enumerate(chosen))


def infrastructure_losses(rows: Iterable[TrajectoryRow]) -> dict[str, float]:
    """Fields of `Mishaps`: the share of attempts that ended without a grade, and what ended them."""
    kinds = {
        Cause.SANDBOX_START_FAILED: "boot",
        Cause.IMAGE_FAILED: "boot",
        Cause.ENGINE_FAILED: "engine",
        Cause.VERIFIER_FAULT: "verifier",
        Cause.UNSCORABLE: "verifier",
        Cause.EVIDENCE_CONTRADICTORY: "verifier",
    }
    counts = {"boot": 0, "sandbox": 0, "engine": 0, "verifier": 0}
    total = lost = 0
    for row in rows:
        total += 1
        if row.verdict not in _GRADED:
            lost += 1
            counts[kinds.get(Cause(row.cause), "sandbox")] += 1
    return {"rate": lost / total, **counts} if lost else {}


def _resized(group: Sequence[Program], size: int, position: int, rng: np.random.Generator) -> tuple[Program, ...]:
    count = len(group)
    if count > size:
        chosen = sorted(rng.choice(count, size, replace=False).tolist())
    else:
        chosen = [*range(count), *rng.integers(count, size=size - count).tolist()]
    return tuple(
        replace(group[member], seed=zlib.crc32(f"{position}/{sibling}".encode()))
        for sibling, member in enumerate(chosen)
    )
