"""Reuse in whole runs on the virtual clock: what is trained again, and what a kill does not change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muster import clock
from muster.journal import BatchRow, GroupRow, Journal, StepRow, TrajectoryRow
from muster.lab.fakes.trainer import FakeTrainerConfig
from muster.observe.outcomes import accounting
from muster.orchestrator.decisions.drift import rebuilt
from muster.orchestrator.dispatch import derived_seed
from muster.orchestrator.resume import standing
from muster.trainer.config import DivergenceLimit
from muster.types import Batch, Ints, Session, Version
from orchestrator.world import World
from rollout.tokens import STOP

STEPS = 6


class Hard(World):
    """A world in which one attempt in five solves its task."""

    def _policy(self, tokens: Ints, session: Session, version: Version) -> Sequence[int]:
        rng = np.random.default_rng(derived_seed(self.seed, f"{session.id}/{len(tokens)}"))
        command = "echo yes > done" if rng.random() < 0.1 else "echo no > other"  # two turns each
        padding = "." * int(rng.integers(1, 60))
        return [ord(c) for c in f"{padding}\n```bash\n{command}\n```{STOP}"]


def hard(tmp_path: Path, seed: int = 0, **settings: Any) -> Hard:
    reuse = {"enabled": True, "below": 0.4, "max_share": 0.25, "max_divergence": 1.0}
    return Hard(
        directory=tmp_path,
        seed=seed,
        steps=STEPS,
        max_lag=1,
        schedule={"reuse": {**reuse, **settings.pop("reuse", {})}},
        **{"loop": {"evaluate_every": 0}, **settings},
    )


def reuses(journal: Journal) -> list[tuple[BatchRow, str]]:
    return [(batch, id) for batch in journal.rows(BatchRow) for id in batch.reused]


def check_replays(world: World) -> None:
    """Check what may be trained again against the record alone."""
    with world.journal() as journal:
        trajectories = {t.id: t for t in journal.rows(TrajectoryRow)}
        groups = {g.id: g for g in journal.rows(GroupRow)}
        first = {m: batch.step for batch in journal.rows(BatchRow) for m in batch.members}
        odometer = rebuilt(journal.rows(StepRow))
        for batch, id in reuses(journal):
            old = trajectories[id]
            assert old.verdict == "success" and old.reward == 1.0
            assert first.get(id, -1) < batch.step, "trained for its own group before, or never"
            (given,) = [g for g in batch.groups if id in groups[g].reused]
            siblings = [trajectories[m] for m in batch.members if trajectories[m].group_id == given]
            assert siblings and all(s.verdict == "failure" and s.task_id == old.task_id for s in siblings)
            assert old.oldest_version is not None
            assert odometer.distance(old.oldest_version, batch.step) <= 1.0
        for batch in journal.rows(BatchRow):
            assert len(batch.reused) <= 2, "a quarter of eight"
            assert not set(batch.reused) & set(batch.members)
        counts = accounting(journal)
        assert counts.clean and counts.reused == len(reuses(journal))


def test_rare_successes_are_trained_again_beside_fresh_failures(tmp_path: Path) -> None:
    world = hard(tmp_path)
    assert clock.run_virtual(world.run()) is True
    check_replays(world)
    with world.journal() as journal:
        assert len(reuses(journal)) >= 3


def test_without_replay_such_groups_are_dropped_and_more_work_is_dispatched(tmp_path: Path) -> None:
    def dropped(name: str, *, enabled: bool) -> int:
        world = hard(tmp_path / name, reuse={"enabled": enabled})
        assert clock.run_virtual(world.run()) is True
        with world.journal() as journal:
            return sum(g.drop_reason == "no_gradient" for g in journal.rows(GroupRow))

    assert dropped("with", enabled=True) < dropped("without", enabled=False)


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_run_resumes_with_its_replays_and_trains_none_against_the_rules(tmp_path: Path, seed: int) -> None:
    world = hard(tmp_path, seed)
    for kill_after_s in np.random.default_rng(seed).uniform(20.0, 120.0, size=3):
        if clock.run_virtual(world.run(kill_after_s=float(kill_after_s))) is not None:
            break
    assert clock.run_virtual(world.run()) is True
    check_replays(world)


def test_a_batch_that_is_made_again_after_a_kill_holds_the_same_replays(tmp_path: Path) -> None:
    world = hard(tmp_path, loop={"checkpoint_every": 100, "evaluate_every": 0})
    assert clock.run_virtual(world.run()) is True
    tasks = {t.id: t for t in world.tasks()}
    with world.journal() as journal:
        for checkpoint in (tmp_path / "checkpoints").iterdir():
            checkpoint.rename(checkpoint.with_suffix(".gone"))
        redo: tuple[Batch, ...] = standing(journal, tmp_path, tasks).redo
        assert [b.step for b in redo] == list(range(STEPS))
        for batch, row in zip(redo, journal.rows(BatchRow), strict=True):
            assert [id for g in batch.groups for id in g.reused] == row.reused
            assert [m.id for g in batch.groups for m in g.fresh] == row.members
            assert all(g.has_gradient for g in batch.groups)


def test_a_reused_success_that_is_measured_as_too_far_is_refused_with_its_group(tmp_path: Path) -> None:
    """The odometer would have let it in: the exact measure decides, and the batch is filled again."""
    world = hard(
        tmp_path,
        trainer=FakeTrainerConfig(drift_m2=0.01, step_s=20.0),
        divergence_limit=DivergenceLimit(max_k3=0.02, action="refill"),  # two versions
    )
    assert clock.run_virtual(world.run()) is True
    check_replays(world)
    with world.journal() as journal:
        trajectories = {t.id: t for t in journal.rows(TrajectoryRow)}
        ages = [batch.step - (trajectories[id].oldest_version or 0) for batch, id in reuses(journal)]
        assert all(age <= 2 for age in ages)
        refused = [g for g in journal.rows(GroupRow) if g.drop_reason == "diverged"]
        assert any(g.reused for g in refused)
