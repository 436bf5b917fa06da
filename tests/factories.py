"""Small valid nouns for tests; each argument is what the test is about."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from muster.engine.port import EngineStatistics
from muster.types import (
    Cause,
    Graded,
    ImageSpec,
    Launch,
    Limits,
    Outcome,
    ReadyGroup,
    Segment,
    Span,
    Stage,
    Task,
    Trajectory,
    Ungraded,
    Verdict,
    VerifierSpec,
    Version,
)


def make_task(id: str = "task", *, family: str = "family", max_turns: int | None = None) -> Task:
    return Task(
        id=id,
        instruction=f"Do {id}.",
        root=Path("/nowhere") / id,
        image=ImageSpec(),
        limits=Limits(),
        verifier=VerifierSpec(tests=Path("/nowhere") / id / "tests"),
        digest=id,
        family=family,
        max_turns=max_turns,
    )


def make_segment(*, prompt: int = 3, sampled: int = 4, version: int = 0) -> Segment:
    versions = np.array([-1] * prompt + [version] * sampled, np.int32)
    return Segment(
        tokens_T=np.arange(prompt + sampled, dtype=np.int32),
        sampled_T=versions >= 0,
        logprobs_T=np.where(versions >= 0, -0.5, 0.0).astype(np.float32),
        versions_T=versions,
    )


def success(reward: float = 1.0) -> Graded:
    return Graded(verdict=Verdict.SUCCESS, reward=reward, cause=Cause.VERIFIER_PASSED)


def failure() -> Graded:
    return Graded(verdict=Verdict.FAILURE, reward=0.0, cause=Cause.VERIFIER_FAILED)


def infra() -> Ungraded:
    return Ungraded(verdict=Verdict.INFRA, cause=Cause.SANDBOX_LOST)


def make_trajectory(
    launch: Launch | None = None,
    outcome: Outcome | None = None,
    *,
    version: int = 0,
    started: float = 0.0,
    ended: float = 1.0,
    sampled: int = 4,
    segments: int = 1,
) -> Trajectory:
    launch = launch or Launch(id="g000000.0", group_id="g000000", task=make_task(), sibling=0)
    return Trajectory(
        id=launch.id,
        group_id=launch.group_id,
        task_id=launch.task.id,
        attempt=launch.attempt,
        segments=tuple(make_segment(version=version, sampled=sampled) for _ in range(segments)),
        turns=(),
        spans=(Span(owner=launch.id, stage=Stage.DECODE, start=started, end=ended),),
        outcome=outcome or success(),
        started=started,
        ended=ended,
    )


def make_group(submission: int, rewards: tuple[float, ...] = (1.0, 0.0), *, version: int = 0) -> ReadyGroup:
    id = f"g{submission:06d}"
    task = make_task()
    members = tuple(
        make_trajectory(
            Launch(id=f"{id}.{i}", group_id=id, task=task, sibling=i),
            success(r) if r > 0 else failure(),
            version=version,
        )
        for i, r in enumerate(rewards)
    )
    return ReadyGroup(id=id, task_id=task.id, submission=submission, members=members, ready_at=1.0)


def make_statistics(
    *, prompt_tokens: int = 0, cached_tokens: int = 0, preemptions: int = 0, kv_capacity_tokens: int = 1000
) -> EngineStatistics:
    return EngineStatistics(
        replica="engine0",
        version=Version(number=0, digest="d0"),
        running=0,
        waiting=0,
        capacity=8,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        recomputed_tokens=0,
        generated_tokens=0,
        kv_used_tokens=0,
        kv_capacity_tokens=kv_capacity_tokens,
        preemptions=preemptions,
    )
