"""A small synthetic run, written as the loops write one: two sessions, a replaced group, an infrastructure refill,
an ungraded trajectory, publications, evaluations, and a launch that a kill interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from factories import make_segment
from muster.journal import (
    BatchRow,
    DeviceRow,
    DropRow,
    EventRow,
    GroupRow,
    Journal,
    LaunchRow,
    MetricRow,
    Purpose,
    SessionRow,
    StepRow,
)
from muster.types import (
    Cause,
    Evaluation,
    Graded,
    Outcome,
    PublicationRecord,
    Span,
    Stage,
    Trajectory,
    Turn,
    Ungraded,
    Verdict,
    Version,
)

GROUPS, SIZE, TRAIN_S, PUBLISH_S = 3, 4, 3.0, 0.5
HOSTILE = "<script>alert('muster')</script> & \"quotes\""

SUCCESS = Graded(verdict=Verdict.SUCCESS, reward=1.0, cause=Cause.VERIFIER_PASSED)
FAILURE = Graded(verdict=Verdict.FAILURE, reward=0.0, cause=Cause.VERIFIER_FAILED)
LOST = Ungraded(verdict=Verdict.INFRA, cause=Cause.SANDBOX_LOST, evidence={"error": HOSTILE})
UNKNOWN = Ungraded(verdict=Verdict.UNKNOWN, cause=Cause.EVIDENCE_CONTRADICTORY)


class SyntheticRun:
    """Writes a run into a journal. Time starts at `start`; every duration comes from the seeded generator."""

    def __init__(self, path: Path, *, seed: int = 7, start: float = 1_700_000_000.0) -> None:
        config = {
            "loop": {"steps": 6},
            "engine": {"replicas": 1, "kv_capacity_tokens": 20_000},
            "sandbox": {"slots": 12, "verifier_slots": 2},
            "trainer": {"correction": {"kind": "token_tis", "cap": 2.0}},
        }
        self.journal = Journal.create(path, meta={"run": "synthetic", "model": "tiny", "seed": seed, "config": config})
        self._rng = np.random.default_rng(seed)
        self.now = start
        self._submission = 0
        self._free_at = start
        self._opened_at = start

    # sessions

    def begin(self, id: int) -> None:
        self.journal.record(SessionRow(id=id, started=self.now, pid=100 + id))
        self._opened_at = self._free_at = self.now

    def end(self, id: int, reason: str = "finished") -> None:
        session = self.journal.rows(SessionRow, "id = ?", id)[0]
        self.journal.record(replace(session, ended=self.now, reason=reason))

    # one step

    def step(self, step: int, *, no_gradient: bool = False, infra: bool = False, unknown: bool = False) -> None:
        admitted = self.now
        ready: list[tuple[GroupRow, list[str]]] = []
        for index in range(GROUPS):
            if no_gradient and index == 0:
                failed, _ = self.group(step, admitted, rewards=[0] * SIZE)
                assert failed.closed_at is not None
                ready.append(self.group(step, failed.closed_at, replaces=failed.id))
            else:
                ready.append(self.group(step, admitted, infra=infra and index == 1, unknown=unknown and index == 2))
        ready_at = max(g.ready_at or 0.0 for g, _ in ready) + 0.01
        self._batch(step, ready, ready_at)
        self._train(step, ready_at)

    def group(
        self,
        version: int,
        admitted: float,
        *,
        replaces: str | None = None,
        rewards: list[int] | None = None,
        infra: bool = False,
        unknown: bool = False,
    ) -> tuple[GroupRow, list[str]]:
        id = f"g{self._submission:06d}"
        row = GroupRow(
            id=id,
            task_id=f"task-{self._submission % 5}",
            submission=self._submission,
            version=version,
            admitted_at=admitted,
            replaces=replaces,
        )
        self._submission += 1
        members: list[str] = []
        ends: list[float] = []
        for sibling in range(SIZE):
            reward = rewards[sibling] if rewards else sibling % 2
            at, attempt = admitted + 0.001 * sibling, 0
            for outcome in [LOST] * (infra and sibling == 2) + [UNKNOWN] * (unknown and sibling == 1):
                at, attempt = self.attempt(row, sibling, attempt, at, outcome).ended + 0.2, attempt + 1
            last = self.attempt(row, sibling, attempt, at, SUCCESS if reward else FAILURE)
            members.append(last.id)
            ends.append(last.ended)
        if rewards and len(set(rewards)) == 1:
            row = replace(row, state="dropped", closed_at=max(ends), drop_reason="no_gradient")
        else:
            row = replace(row, state="ready", ready_at=max(ends))
        self.journal.record(row)
        return row, members

    def attempt(self, group: GroupRow, sibling: int, attempt: int, at: float, outcome: Outcome) -> Trajectory:
        id = f"{group.id}.{sibling}" + (f"a{attempt}" if attempt else "")
        self._launch(id, group, sibling, attempt, at)
        trajectory = self._play(id, group, attempt, at + 0.05, outcome)
        self.journal.record_trajectory(trajectory, sibling=sibling, purpose="train")
        return trajectory

    def interrupted(self, id: str = "g000099.0") -> None:
        group = GroupRow(id=id.split(".")[0], task_id="task-0", submission=99, version=2, admitted_at=self.now)
        self.journal.record(group)
        self._launch(id, group, 0, 0, self.now)

    def dropped(self, id: str = "g000098.0") -> None:
        group = GroupRow(
            id=id.split(".")[0],
            task_id="task-0",
            submission=98,
            version=2,
            admitted_at=self.now,
            state="dropped",
            closed_at=self.now + 1,
            drop_reason="too_stale",
        )
        self.journal.record(group)
        self._launch(id, group, 0, 0, self.now)
        self.journal.record(DropRow(id=id, reason="too_stale", at=self.now + 1, sampled_tokens=17))

    def evaluate(self, step: int, passed: int, graded: int = 20) -> None:
        rate = passed / graded
        for i in range(graded):
            group = GroupRow(id=f"e{step}", task_id=f"held-{i}", submission=-1, version=step, admitted_at=self.now)
            id = f"e{step}.{i}"
            self._launch(id, group, i, 0, self.now, purpose="evaluate")
            outcome = SUCCESS if i < passed else FAILURE
            self.journal.record_trajectory(self._play(id, group, 0, self.now, outcome), sibling=i, purpose="evaluate")
        self.journal.record_evaluation(
            Evaluation(
                step=step,
                version=Version(number=step, digest=f"d{step}"),
                tasks=graded,
                graded=graded,
                passed=passed,
                pass_rate=rate,
                low=max(0.0, rate - 0.1),
                high=min(1.0, rate + 0.1),
                by_family={"files": (passed, graded)},
                ungraded={},
                fingerprint={"engine": "embedded", "dtype": "bfloat16", "version": step, "temperature": 0.7},
                started=self.now,
                ended=self.now + 4.0,
            )
        )
        self.now += 4.0

    # parts

    def _launch(
        self, id: str, group: GroupRow, sibling: int, attempt: int, at: float, purpose: Purpose = "train"
    ) -> None:
        self.journal.record(
            LaunchRow(
                id=id,
                group_id=group.id,
                task_id=group.task_id,
                sibling=sibling,
                attempt=attempt,
                at=at,
                purpose=purpose,
            )
        )

    def _play(self, id: str, group: GroupRow, attempt: int, started: float, outcome: Outcome) -> Trajectory:
        stages = [Stage.SANDBOX_QUEUE, Stage.SANDBOX_START]
        turns = int(self._rng.integers(1, 4))
        for _ in range(turns):
            stages += [Stage.ENGINE_QUEUE, Stage.PREFILL, Stage.DECODE, Stage.TOOL]
        stages += [Stage.VERIFIER_QUEUE, Stage.VERIFY]
        at, spans = started, []
        for stage in stages:
            until = at + float(self._rng.exponential(0.4)) + 1e-3
            spans.append(Span(owner=id, stage=stage, start=at, end=until))
            at = until
        sampled = int(self._rng.integers(5, 40))
        return Trajectory(
            id=id,
            group_id=group.id,
            task_id=group.task_id,
            attempt=attempt,
            segments=(make_segment(prompt=30, sampled=sampled, version=group.version),),
            turns=tuple(
                Turn(
                    index=i,
                    reply=f"```bash\necho {HOSTILE}\n```",
                    command=f"echo {HOSTILE}",
                    observation=HOSTILE,
                    exit_code=0,
                    sampled_tokens=sampled // turns,
                    prompt_tokens=30 + 20 * i,
                    cached_tokens=20 * i,
                    duration_s=0.1,
                )
                for i in range(turns)
            ),
            spans=tuple(spans),
            outcome=outcome,
            started=started,
            ended=at,
        )

    def _batch(self, step: int, ready: list[tuple[GroupRow, list[str]]], ready_at: float) -> None:
        self.journal.record(
            BatchRow(
                step=step,
                opened_at=self._opened_at,
                ready_at=ready_at,
                trainer_free_at=self._free_at,
                version=step,
                groups=[g.id for g, _ in ready],
                members=[m for _, members in ready for m in members],
            ),
            *(replace(g, state="trained", step=step, closed_at=ready_at) for g, _ in ready),
        )
        self._opened_at = ready_at

    def _train(self, step: int, ready_at: float) -> None:
        trained, published = ready_at + TRAIN_S, ready_at + TRAIN_S + PUBLISH_S
        metrics = {"loss": 0.1, "k3": 2e-4, "m2": 4e-4, "ess": 0.99, "mean_abs_logprob_difference": 4e-3}
        metrics |= {"clip_fraction": 0.01, "dropped_fraction": 0.0, "fresh_mean_abs_logprob_difference": 3e-3}
        rows = {"reward": 0.2 + 0.05 * step, "solve_rate": 0.2, "ttb_s": ready_at - self._free_at, "lag_max": 0.0}
        self.journal.record(
            DeviceRow(device="trainer", state="batch_wait", start=self._free_at, end=ready_at),
            DeviceRow(device="trainer", state="train", start=ready_at, end=trained),
            DeviceRow(device="trainer", state="publish", start=trained, end=published),
            DeviceRow(device="engine0", state="idle", start=self._free_at, end=self._free_at + 2.0),
            DeviceRow(device="engine0", state="decode", start=self._free_at + 2.0, end=ready_at),
            DeviceRow(device="engine0", state="idle", start=ready_at, end=published - 0.1),
            DeviceRow(device="engine0", state="publish_pause", start=published - 0.1, end=published),
            StepRow(step=step, started=ready_at, ended=trained, metrics=metrics),
            *(MetricRow(name=n, step=step, at=trained, value=v) for n, v in rows.items()),
        )
        self.journal.record_publication(publication(step + 1))
        self._free_at = self.now = published


def publication(number: int, *, digest_equal: bool = True) -> PublicationRecord:
    return PublicationRecord(
        version=Version(number=number, digest=f"d{number}"),
        replica="engine0",
        export_s=0.2,
        stage_s=0.15,
        commit_s=0.05,
        pause_s=0.1,
        latency_s=0.5,
        size_bytes=270_000_000,
        digest_equal=digest_equal,
        canary_difference=0.002,
        held=3,
    )


def write_run(path: Path, *, complete: bool = True) -> SyntheticRun:
    """The standard run: killed after step 2, resumed, six steps; `complete=False` stops at the kill."""
    run = SyntheticRun(path)
    run.begin(1)
    run.evaluate(0, passed=4)
    run.step(0)
    run.step(1, no_gradient=True)
    run.step(2, infra=True)
    run.interrupted()
    if complete:
        run.now += 60.0
        run.begin(2)
        run.journal.record(EventRow(at=run.now, kind="resume", message="resumed at step 3"))
        run.step(3, unknown=True)
        run.dropped()
        run.step(4)
        run.step(5)
        run.evaluate(6, passed=12)
        run.end(2)
    return run
