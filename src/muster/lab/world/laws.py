"""The laws of a run, and those of them that are checked while it goes.

    an attempt starts / ends ─► slots, attribution, kept, versions, budget, ttb (its spans tile its life)
    a batch reaches the trainer ─► complete, staleness, divergence, once, reuse
    weights leave the trainer ─► weights
    nothing happens for hours ─► liveness

Law: a law is checked against what was handed over, not against what the part that handed it over says of itself. What
only the record can show (nothing lost, counts add up) is checked in `account`. The first broken law ends the world.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from muster import clock
from muster.lab.fakes.engine import logprobs_of
from muster.lab.world.chaos import Chaos
from muster.lab.world.scenario import Scenario
from muster.types import Batch, Cause, Graded, Kept, Launch, ReadyGroup, Trajectory, Verdict, Version

REFERENCE_TOKENS_PER_S = 50.0
MAX_TOKENS_PER_TURN = 1600
STALL_S = 6 * 3600.0
"""Longer than any single thing may take: a verifier's three time-outs, an engine's request deadline, a publication's
retries. A run in which nothing ended for so long is stuck."""


class Law(StrEnum):
    """Law: what must hold of every run, whatever happens to it."""

    COMPLETE = "complete"  # a batch holds whole groups of graded members, with gradient
    ATTRIBUTION = "attribution"  # what the world did is never graded
    COUNTS = "counts"  # every launch ends once, as a trajectory or a drop with a reason
    VERSIONS = "versions"  # a token's version is the one whose weights made it
    WEIGHTS = "weights"  # a version number has one set of weights, also after a resume
    STALENESS = "staleness"  # the bound holds when a batch is trained, also in the first step after a resume
    DIVERGENCE = "divergence"  # no token trains that is further from the trainer than the measured limits allow
    ONCE = "once"  # no trajectory is trained in two batches, unless it is reused
    REUSE = "reuse"  # only verified successes at the same task are, by name, unchanged, and few of them
    SURPLUS = "surplus"  # no more groups are held than over-launching allows; what becomes of them is as configured
    LOST = "lost"  # no group that was collected is forgotten, also over a kill
    PATIENCE = "patience"  # who is given up had as many launches that came to nothing as configured, and none too many
    KEPT = "kept"  # what was continued begins as it was kept: tokens, log-probabilities, versions, turns
    SLOTS = "slots"  # no more live trajectories than slots, no more sandboxes than the pool has
    BUDGET = "budget"  # an attempt's own time ends at its budget
    SANDBOXES = "sandboxes"  # every sandbox and frozen state is given back
    LIVENESS = "liveness"  # something happens, and the run ends
    TTB = "ttb"  # the parts of a TTB sum to it, from spans without gap or overlap
    CRASH = "crash"  # only the world's failures stop a run, with their cause


class LawBroken(Exception):
    """Violation of a law. `at`: the virtual instant, in seconds."""

    def __init__(self, law: Law, message: str) -> None:
        super().__init__(f"{law} at {clock.now():.3f} s: {message}")
        self.law = law
        self.at = clock.now()


@dataclass(slots=True)
class _Seen:
    """Memory of the laws over all lives of a world."""

    trained: dict[str, int]  # trajectory -> batch
    reused: dict[str, set[int]]  # trajectory -> batches
    succeeded: dict[str, Trajectory]
    kept: dict[str, Kept]  # by its snapshot
    reached_s: dict[str, float]  # launch -> the model's own time at its last keep point
    digests: dict[int, str]  # version number -> weights


class Laws:
    """Laws of a world, held against what happens in it.

    Example: `laws.ended(launch, trajectory)` raises `LawBroken` if the trajectory cannot be true.
    """

    def __init__(self, scenario: Scenario, chaos: Chaos) -> None:
        self._scenario = scenario
        self._chaos = chaos
        self._seen = _Seen({}, {}, {}, {}, {}, {})
        self._live: set[str] = set()
        self.progress_at = clock.now()

    def new_life(self, steps: int) -> None:
        """The orchestrator begins again after `steps` committed ones; what was live is not.

        A batch whose step died uncommitted was not trained: its update is in no weights that live on, its groups are
        ready again, and with others that became ready meanwhile they may form another batch.
        """
        self._live.clear()
        self._seen.trained = {member: step for member, step in self._seen.trained.items() if step < steps}
        self._chaos.faulted.clear()  # a launch that died uncommitted is launched again under the same id
        self.progress()

    def progress(self) -> None:
        self.progress_at = clock.now()

    def check(self, law: Law, holds: bool, message: str) -> None:
        if not holds:
            raise LawBroken(law, message)

    # --- attempts

    def started(self, launch: Launch) -> None:
        if launch.id.startswith("g"):  # evaluations have slots of their own
            self._live.add(launch.id)
            self.check(Law.SLOTS, len(self._live) <= self._scenario.slots, f"{len(self._live)} are live")

    def gone(self, launch: Launch) -> None:
        self._live.discard(launch.id)

    def ended(self, launch: Launch, trajectory: Trajectory) -> None:
        self.progress()
        faulted = launch.id in self._chaos.faulted
        graded = isinstance(trajectory.outcome, Graded)
        self.check(Law.ATTRIBUTION, not (faulted and graded), f"{launch.id} was hit and is {trajectory.outcome}")
        blamed = trajectory.outcome.cause is Cause.ENGINE_FAILED
        self.check(Law.ATTRIBUTION, faulted or not blamed, f"{launch.id}: no engine failed it")
        self._continued(launch, trajectory)
        self._versions(trajectory)
        self._budget(trajectory)
        self._spans(trajectory)
        if trajectory.outcome.verdict is Verdict.SUCCESS:
            self._seen.succeeded[trajectory.id] = trajectory

    def kept(self, kept: Kept) -> None:
        self._seen.kept[kept.snapshot] = kept
        self._seen.reached_s[kept.launch] = kept.own_s

    def reached_s(self, launch_id: str) -> float:
        """The model's own time at the last keep point that this launch made; 0: it made none."""
        return self._seen.reached_s.get(launch_id, 0.0)

    def _continued(self, launch: Launch, trajectory: Trajectory) -> None:
        """Held against what the attempt that was lost really had, in an earlier life perhaps."""
        if launch.kept is None:
            return
        true = self._seen.kept.get(launch.kept.snapshot)
        self.check(Law.KEPT, true is not None, f"{launch.id} goes on from what nobody kept")
        assert true is not None, "checked"
        segment, before = trajectory.segments[0], true.segment
        arrays = ((segment.tokens_T, before.tokens_T), (segment.logprobs_T, before.logprobs_T))
        arrays += ((segment.versions_T, before.versions_T),)
        same = all(np.array_equal(now[: len(then)], then) for now, then in arrays)
        self.check(Law.KEPT, same, f"{launch.id} does not begin with the tokens that were kept")
        same = trajectory.turns[: len(true.turns)] == true.turns
        self.check(Law.KEPT, same, f"{launch.id} does not begin with the turns that were kept")

    def _versions(self, trajectory: Trajectory) -> None:
        """The fake engine's log-probabilities are a function of the weights: a wrong label does not fit them."""
        for segment in trajectory.segments:
            for number in np.unique(segment.versions_T[segment.sampled_T]).tolist():
                digest = self._seen.digests.get(number)
                self.check(Law.VERSIONS, digest is not None, f"{trajectory.id}: no version {number} was published")
                made = logprobs_of(segment.tokens_T, Version(number=number, digest=str(digest)), 1.0)
                mask = segment.versions_T == number
                fits = bool(np.array_equal(made[mask], segment.logprobs_T[mask]))
                self.check(Law.VERSIONS, fits, f"{trajectory.id}: version {number} did not make its tokens")

    def _budget(self, trajectory: Trajectory) -> None:
        own_s = sum(t.duration_s for t in trajectory.turns) + trajectory.sampled_tokens / REFERENCE_TOKENS_PER_S
        limit_s = self._scenario.time_budget_s + MAX_TOKENS_PER_TURN / REFERENCE_TOKENS_PER_S + 0.2
        self.check(Law.BUDGET, own_s <= limit_s, f"{trajectory.id} used {own_s:.1f} s of {limit_s:.1f} s")

    def _spans(self, trajectory: Trajectory) -> None:
        spans = trajectory.spans
        edges = [trajectory.started, *(s.end for s in spans)]
        tiled = all(s.start == edge for s, edge in zip(spans, edges, strict=False))
        self.check(Law.TTB, tiled and edges[-1] == trajectory.ended, f"{trajectory.id}: its spans leave a gap")

    # --- batches and weights

    def batch(self, batch: Batch) -> None:
        scenario = self._scenario
        self.progress()
        count = len(batch.groups)
        self.check(Law.COMPLETE, count == scenario.groups_per_batch, f"batch {batch.step} has {count} groups")
        for group in batch.groups:
            self._group(group)
        self._replays(batch)
        for member in (m for group in batch.groups for m in group.fresh):
            before = self._seen.trained.setdefault(member.id, batch.step)
            self.check(Law.ONCE, before == batch.step, f"{member.id} was in batch {before}, is in {batch.step}")
        oldest = min(group.oldest_version for group in batch.groups)
        lag = batch.step - oldest
        self.check(Law.STALENESS, 0 <= lag <= scenario.max_lag, f"batch {batch.step} has tokens of version {oldest}")
        self._divergence(batch, oldest)

    def _divergence(self, batch: Batch, oldest: int) -> None:
        """By the laws' own sum: every update moves the weights equally far, and in the same direction."""
        options = self._scenario.scheduling
        digests = [self._seen.digests[v] for v in range(oldest, batch.step + 1)]
        distance = options.drift * sum(now != then for then, now in pairwise(digests))
        if options.max_divergence is not None:
            near = distance <= options.max_divergence + 1e-9
            self.check(Law.DIVERGENCE, near, f"batch {batch.step} has tokens at a distance of {distance:.4f}")
        if options.refill_k3 is None:
            return
        for member in (m for group in batch.groups for m in group.members):
            versions = [s.versions_T[s.sampled_T] for s in member.segments]
            lags_N = np.maximum(batch.step - np.concatenate(versions), 0)
            k3 = float(np.mean(lags_N**2.0)) * options.drift**2 / 2
            self.check(Law.DIVERGENCE, k3 <= options.refill_k3 + 1e-9, f"{member.id} is at a k3 of {k3:.6f}")

    def _replays(self, batch: Batch) -> None:
        """A step that is made again after a kill reuses what it reused."""
        config = self._scenario.scheduling.reuse
        room = int(config.max_share * self._scenario.groups_per_batch * self._scenario.group_size)
        names = [name for group in batch.groups for name in group.reused]
        self.check(Law.REUSE, len(names) <= (room if config.enabled else 0), f"batch {batch.step} reuses {names}")
        self.check(Law.REUSE, len(names) == len(set(names)), f"batch {batch.step} reuses one twice: {names}")
        for group in batch.groups:
            for member in (m for m in group.members if m.id in group.reused):
                true = self._seen.succeeded.get(member.id)
                same = true is not None and true.task_id == group.task_id and _same_tokens(true, member)
                self.check(Law.REUSE, same, f"{group.id} reuses {member.id}, no such success at its task")
                solved = any(m.outcome.verdict is Verdict.SUCCESS for m in group.fresh)
                self.check(Law.REUSE, not solved, f"{group.id} has a success, and reuses {member.id}")
                used = self._seen.reused.setdefault(member.id, set())
                used.add(batch.step)
                self.check(Law.REUSE, len(used) <= config.max_uses, f"{member.id} is reused in {sorted(used)}")

    def _group(self, group: ReadyGroup) -> None:
        least = self._scenario.min_group or self._scenario.group_size
        siblings = {m.id.partition(".")[2].partition("a")[0] for m in group.fresh}
        self.check(Law.COMPLETE, len(siblings) >= least, f"{group.id} has {len(siblings)} of {least} siblings")
        self.check(Law.COMPLETE, len(siblings) == len(group.fresh), f"{group.id} has a sibling twice")
        whole = all(m.group_id == group.id and isinstance(m.outcome, Graded) for m in group.fresh)
        self.check(Law.COMPLETE, whole and group.has_gradient, f"{group.id} is not graded, or has no gradient")

    def published(self, version: Version) -> None:
        self.progress()
        digest = self._seen.digests.setdefault(version.number, version.digest)
        self.check(Law.WEIGHTS, digest == version.digest, f"version {version.number} has other weights than before")


def _same_tokens(one: Trajectory, other: Trajectory) -> bool:
    """The same sequences, with the log-probabilities and versions of those that sampled them."""
    pairs = list(zip(one.segments, other.segments, strict=False))
    return len(one.segments) == len(other.segments) and all(
        np.array_equal(a.tokens_T, b.tokens_T)
        and np.array_equal(a.logprobs_T, b.logprobs_T)
        and np.array_equal(a.versions_T, b.versions_T)
        for a, b in pairs
    )
