"""`muster plan`: the bottleneck that a world was built with is what is recommended, and a run reproduces itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from lab import small_runs
from muster.config import RunConfig
from muster.engine.timing import EngineTiming
from muster.errors import ConfigError, UserError
from muster.journal import FILE_NAME, Journal
from muster.lab.collection.collection import CollectionWorld, simulate
from muster.lab.plan.changes import changes
from muster.lab.plan.draws import DrawTask, DrawWork, play
from muster.lab.plan.fit.sharing import Shares
from muster.lab.plan.plan import PlanOptions, plan
from muster.lab.plan.planner import Outcome
from muster.lab.plan.worlds import base_of
from muster.lab.result import BenchResult

SLOW = EngineTiming(step_s=0.02, row_s=0.03, prefill_s=5e-3)


def quiet(line: str) -> None:
    pass


def declared(directory: Path, **parts: dict[str, Any]) -> Path:
    """One batch of the small world, smaller still, as a file."""
    smaller: dict[str, dict[str, Any]] = {
        "workload": {"groups": 3, "group_size": 3},
        "schedule": {"groups_per_batch": 3, "group_size": 3},
    }
    both = {name: {**smaller.get(name, {}), **parts.get(name, {})} for name in (*smaller, *parts)}
    world = small_runs.world(training={"steps": 1}, **both)
    path = directory / "world.toml"
    path.write_text(tomli_w.dumps(world.model_dump(mode="python", exclude_none=True)), encoding="utf-8")
    return path


def recommended(path: Path) -> str | None:
    return plan(PlanOptions(workload=path, seeds=1, jobs=1), quiet).notes["recommended"]


def run_of(directory: Path, world: CollectionWorld, seed: int = 0) -> Path:
    """A run's directory with the journal that a simulation wrote, under the configuration of a real one."""
    sandboxes, engine = world.sandboxes, world.fleet.config()
    config = RunConfig(
        schedule=world.schedule,
        loop={"steps": world.training.steps, "evaluate_every": 0, "checkpoint_every": 1000},
        sandbox={"slots": sandboxes.slots, "warm": sandboxes.warm, "verifier_slots": sandboxes.verifier_slots},
        engine={"max_streams": engine.max_running, "max_model_len": 2048, "prefill_chunk_tokens": 2016},
    )
    directory.mkdir()
    with simulate(world, seed).journal as journal:
        journal.set_meta("config", config.model_dump(mode="json"))
        (directory / FILE_NAME).write_bytes(journal.to_bytes())
    return directory


def short(*, slots: int = 16) -> CollectionWorld:
    """Four batches of short programs, whose contexts fit into the embedded engine's defaults."""
    return small_runs.world(
        workload={"group_size": 3, "turns": {"median": 2, "sigma": 0.3, "cap": 4}, "max_context_tokens": 1500},
        schedule={"groups_per_batch": 2, "group_size": 3, "slots": slots},
        training={"steps": 4, "step_s": 2.0},
    )


def test_too_few_slots_are_recommended_to_be_more(tmp_path: Path) -> None:
    path = declared(tmp_path, sandboxes={"slots": 2}, schedule={"slots": 2})
    assert str(recommended(path)).startswith("slots")


def test_slow_boots_are_recommended_to_be_warm(tmp_path: Path) -> None:
    times = {"boot_s": {"median": 10.0}, "command_s": 0.0}
    one_group = {"groups_per_batch": 1, "group_size": 16, "slots": 4}
    path = declared(
        tmp_path,
        sandboxes={"times": times, "slots": 16},
        schedule=one_group,
        workload={"groups": 1, "group_size": 16},
    )
    changes = (
        "sandboxes.warm=8",
        "sandboxes.verifier_slots=32",
        "fleet.replicas=2",
        "schedule.order=launch",
    )
    result = plan(PlanOptions(workload=path, what=changes, seeds=1, jobs=1), quiet)
    assert result.notes["recommended"] == "sandboxes.warm=8"


def test_slow_engines_are_recommended_to_be_more(tmp_path: Path) -> None:
    path = declared(tmp_path, fleet={"engine": small_runs.engine(SLOW)})
    assert str(recommended(path)).startswith("engines")


def test_nothing_is_recommended_where_only_the_work_takes_time(tmp_path: Path) -> None:
    fast = EngineTiming(step_s=0.001, prefill_s=1e-6)
    path = declared(tmp_path, fleet={"engine": small_runs.engine(fast)}, workload={"tool_s": {"median": 5.0}})
    assert recommended(path) is None


def test_a_change_under_which_the_run_would_stop_is_told_and_left_out(tmp_path: Path) -> None:
    lines: list[str] = []
    options = PlanOptions(workload=declared(tmp_path), what=("mishaps.rate=1.0",), seeds=1, jobs=1)
    result = plan(options, lines.append)
    assert [row["change"] for row in result.rows] == ["as it is"]
    assert any("does not run" in line and "failed by infrastructure" in line for line in lines), lines


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("runs") / "a", short())


def test_a_run_is_reproduced_and_the_error_is_told(run: Path) -> None:
    lines: list[str] = []
    result = plan(PlanOptions(run=run, what=("schedule.slots=3",), seeds=1, jobs=1), lines.append)
    (target,) = result.targets
    assert target.name == "reproduction_error"
    assert target.value < 0.1
    assert any("measured" in line for line in lines)
    assert result.notes["recommended"] is None, "fewer slots gain nothing"


def test_a_changed_configuration_is_predicted_beside_the_run_made_with_it(run: Path, tmp_path: Path) -> None:
    other = run_of(tmp_path / "b", short(slots=2), seed=7)
    options = PlanOptions(run=run, settings=("schedule.slots=2",), against=other, seeds=1, jobs=1)
    result = plan(options, quiet)
    (target,) = result.targets
    assert target.name == "prediction_error"
    assert target.value < 0.2
    assert result.rows[0]["predicted TTB p50 s"] > 1.5 * float(result.rows[0]["run's TTB p50 s"])


def test_a_run_that_was_made_otherwise_than_was_set_is_not_compared(run: Path) -> None:
    with pytest.raises(UserError, match=r"was not made with --set schedule\.slots=5 alone"):
        plan(PlanOptions(run=run, settings=("schedule.slots=5",), against=run, seeds=1, jobs=1), quiet)


def test_on_one_machine_what_overlaps_is_slower(run: Path) -> None:
    """Collecting while the trainer trains gains less where engine and trainer share cores."""
    with Journal.open(run / FILE_NAME) as journal:
        base = base_of(journal, source="run")
    (change,) = (c for c in changes(base.world) if c.name == "max_lag 1")

    def ttb_s(alone: Shares | None) -> float:
        work = DrawWork(groups=base.groups, alone=alone)
        outcome = play(work, DrawTask(world=change.world, number=0, skipped=base.skipped))
        assert isinstance(outcome, Outcome)
        return outcome.ttb_mean_s

    assert ttb_s(Shares()) > ttb_s(None)


def test_two_processes_give_what_one_gives(run: Path) -> None:
    def made(jobs: int) -> BenchResult:
        return plan(PlanOptions(run=run, what=("sandbox.slots=2",), seeds=1, jobs=jobs), quiet)

    assert made(1).to_json() == made(2).to_json()


def test_a_plan_is_written_as_json_with_its_fit(run: Path) -> None:
    result = plan(PlanOptions(run=run, what=("training.step_s=1",), seeds=1, jobs=1), quiet)
    told = json.loads(result.to_json())
    assert told["notes"]["fit"]["step_s"] == pytest.approx(2.0)
    assert [row["change"] for row in told["rows"]] == ["as it is", "training.step_s=1"]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("trainer.lr=1", "changes nothing in the simulation"),
        ("schedule.slot=4", "did you mean 'schedule.slots'"),
        ("training.stepps=4", "training.stepps"),
        ("slots", "write key=value"),
    ],
)
def test_a_key_that_means_nothing_here_is_refused(run: Path, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(PlanOptions(run=run, what=(key,), seeds=1, jobs=1), quiet)


def test_either_a_run_or_a_declared_world_is_named(run: Path, tmp_path: Path) -> None:
    for options in (PlanOptions(), PlanOptions(run=run, workload=declared(tmp_path))):
        with pytest.raises(UserError, match="name the directory of a run"):
            plan(options, quiet)
    with pytest.raises(UserError, match="are about a run"):
        plan(PlanOptions(workload=declared(tmp_path), settings=("a=1",)), quiet)
