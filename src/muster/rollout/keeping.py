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

from muster.rollout.agent import Episode
from muster.rollout.renderer import Transcript
from muster.rollout.spans import SpanRecorder
from muster.sandbox.port import Sandbox
from muster.types import Kept, Launch, Outcome, Stage, Trajectory

CONTINUED = "continued"
"""Key of an outcome's evidence: what the attempt was continued from. Absent when it began at the beginning."""


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
    """Those of one attempt. Called between two turns."""

    keeper: Keeper
    launch: Launch
    episode: Episode
    sandbox: Sandbox
    spans: SpanRecorder
    last_s: float  # of the model's own time, at the last keep point

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
        await self.keeper.commit(self.launch, kept)


def continued(kept: Kept) -> Episode:
    """The episode as it stood at a keep point: the same tokens, log-probabilities and versions."""
    return Episode(Transcript.of(kept.segment), turns=list(kept.turns), spent_s=kept.own_s)


def with_origin(outcome: Outcome, kept: Kept | None) -> Outcome:
    """`outcome`, whose evidence says what the attempt was continued from, if it was."""
    if kept is None:
        return outcome
    origin = {
        "launch": kept.launch,
        "snapshot": kept.snapshot,
        "turns": len(kept.turns),
        "sampled_tokens": kept.sampled_tokens,
    }
    return replace(outcome, evidence={**outcome.evidence, CONTINUED: origin})


def kept_tokens(evidence: Mapping[str, Any]) -> int:
    """Sampled tokens that an attempt with this evidence of its outcome took over from an earlier one."""
    return int(evidence.get(CONTINUED, {}).get("sampled_tokens", 0))


def kept_turns(evidence: Mapping[str, Any]) -> int:
    """Turns that it took over."""
    return int(evidence.get(CONTINUED, {}).get("turns", 0))


def own_tokens(trajectory: Trajectory) -> int:
    """Tokens that were sampled for this attempt itself: over all launches they add up without counting any twice."""
    return trajectory.sampled_tokens - kept_tokens(trajectory.outcome.evidence)
