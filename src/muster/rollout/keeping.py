"""Keep points: where an attempt goes on when its sandbox, its engine or this process is lost.

    turn ─► turn ─► due? ─► sandbox.keep() ─► commit ─► turn ─► …  lost ─► fork of the kept state, same tokens ─► turn

Law: keeping never changes what the agent sees, and never costs it: it happens between two turns, only when nothing of
the agent runs, and is charged to nobody's budget. What is committed can be forked: first the state, then the word of
it. Regenerating lost attempts from the beginning would not only cost their time: longer ones are lost more often, so
what comes back in their place would be shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from muster.rollout.port import Episode
from muster.rollout.renderer import Transcript
from muster.rollout.spans import SpanRecorder
from muster.sandbox.port import Sandbox
from muster.types import Kept, Launch, Outcome, Stage, Trajectory, Verdict

CONTINUED = "continued"
"""Key of an outcome's evidence: what the attempt was continued from. Absent when it began at the beginning."""
KEPT = "kept"
"""Key of the evidence of what infrastructure lost: the last keep point that it made. Absent when it made none."""


class Keeper(Protocol):
    """Holds keep points; `orchestrator.keeps.Keeps` is one."""

    def due(self, launch: Launch, own_s: float) -> bool:
        """Whether to keep now. `own_s`: the model's own time since the last keep point, or since the beginning."""
        ...

    async def commit(self, launch: Launch, kept: Kept) -> None:
        """`kept` replaces what was kept for this sibling before. Its snapshot exists."""
        ...


@dataclass(slots=True, kw_only=True)
class KeepPoints:
    """Keep points of one attempt. Called between two turns."""

    keeper: Keeper
    launch: Launch
    episode: Episode
    sandbox: Sandbox
    spans: SpanRecorder
    last_s: float  # of the model's own time, at the last keep point
    made: Kept | None = None  # the last one

    async def __call__(self) -> None:
        """Keep, if it is due and takes nothing from the agent; else it is asked again after the next turn."""
        own_s = self.episode.spent_s
        if not self.keeper.due(self.launch, own_s - self.last_s):
            return
        self.spans.enter(Stage.ASSEMBLY)
        snapshot = await self.sandbox.keep()
        if snapshot is None:
            return
        self.last_s = own_s
        kept = Kept(
            launch=self.launch.id,
            snapshot=snapshot.id,
            own_s=own_s,
            segment=self.episode.transcript.segment(),
            turns=tuple(self.episode.turns),
        )
        self.made = kept
        await self.keeper.commit(self.launch, kept)


def continued(kept: Kept) -> Episode:
    """The episode as it stood at a keep point: the same tokens, log-probabilities and versions."""
    return Episode(Transcript.of(kept.segment), turns=list(kept.turns), spent_s=kept.own_s)


def with_points(outcome: Outcome, *, began: Kept | None, made: Kept | None) -> Outcome:
    """`outcome`, whose evidence says from where the attempt went on, if it did, and from where its sibling will."""
    points: dict[str, dict[str, Any]] = {}
    if began is not None:
        points[CONTINUED] = {"launch": began.launch, "snapshot": began.snapshot, **_extent(began)}
    if made is not None and outcome.verdict is Verdict.INFRA:
        points[KEPT] = {"own_s": made.own_s, **_extent(made)}
    return replace(outcome, evidence={**outcome.evidence, **points}) if points else outcome


def _extent(kept: Kept) -> dict[str, int]:
    return {"turns": len(kept.turns), "sampled_tokens": kept.sampled_tokens}


def reached_s(evidence: Mapping[str, Any]) -> float:
    """The model's own time, in seconds, at the last keep point of an attempt with this evidence that was lost; or 0."""
    return float(evidence.get(KEPT, {}).get("own_s", 0.0))


def kept_tokens(evidence: Mapping[str, Any]) -> int:
    """Sampled tokens that an attempt with this evidence of its outcome took over from an earlier one."""
    return int(evidence.get(CONTINUED, {}).get("sampled_tokens", 0))


def kept_turns(evidence: Mapping[str, Any]) -> int:
    """Turns that it took over."""
    return int(evidence.get(CONTINUED, {}).get("turns", 0))


def own_tokens(trajectory: Trajectory) -> int:
    """Tokens that were sampled for this attempt itself: over all launches they add up without counting any twice."""
    return trajectory.sampled_tokens - kept_tokens(trajectory.outcome.evidence)
