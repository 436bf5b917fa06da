from __future__ import annotations

from dataclasses import replace

from muster.journal import BatchRow, StepRow
from muster.observe.report import build_report
from muster.observe.sections.advice import advise, alarms
from muster.types import Stage
from observe.synthetic import SyntheticRun, publication


def test_a_clean_run_raises_no_alarm(run: SyntheticRun) -> None:
    assert alarms(build_report(run.journal)) == ()


def test_idle_engines_of_a_synchronous_run_are_worth_overlapping(run: SyntheticRun) -> None:
    advice = advise(build_report(run.journal))
    assert "schedule.max_lag = 1" in advice.sentence
    assert advice.saves_s is not None
    assert advice.saves_s > 10


def test_the_largest_avoidable_cause_is_named_with_its_remedy(run: SyntheticRun) -> None:
    report = build_report(run.journal)
    busy = replace(report.devices, strips={})
    only = replace(report, devices=busy, batches=(report.batches[1],), wall_s=report.batches[1].ttb_s)
    assert advise(only).sentence.startswith("Refill: sample more informative tasks")
    assert advise(only).saves_s == report.batches[1].felt[Stage.REFILL]


def test_a_queue_in_front_of_a_busy_trainer_is_worth_nothing(run: SyntheticRun) -> None:
    for batch in run.journal.rows(BatchRow):
        run.journal.record(replace(batch, trainer_free_at=batch.ready_at))
    advice = advise(build_report(run.journal, {0: {"path": 4.0, "engine": 1.0}}))
    assert advice.saves_s is None
    assert advice.sentence.startswith("No single change pays")
    assert "Batches are held by the longest attempt; nothing else" in advice.sentence


def test_divergence_digests_and_infrastructure_raise_alarms(run: SyntheticRun) -> None:
    step = run.journal.rows(StepRow, "step = 4")[0]
    run.journal.record(replace(step, metrics={**step.metrics, "k3": 0.05, "ess": 0.5}))
    run.journal.record_publication(publication(3, digest_equal=False))
    report = build_report(run.journal)
    crowded = replace(report.train, causes={**report.train.causes, ("infra", "sandbox_lost"): 40})  # type: ignore[dict-item]
    found = " ".join(alarms(replace(report, train=crowded)))
    assert "k3 above 0.01 in 1 batch, worst 0.05 at step 4" in found
    assert "ESS below 0.9 in 1 batch, worst 0.50 at step 4" in found
    assert "digest mismatch" in found
    assert "Infrastructure failed" in found
    assert "launches are unaccounted for: this is a bug" in found


def test_half_the_groups_without_gradient_raise_an_alarm(run: SyntheticRun) -> None:
    report = build_report(run.journal)
    groups = replace(report.groups, complete=8, without_gradient=4, unsolved=3)
    (failed,) = alarms(replace(report, groups=groups))
    assert "50.0 % of 8 complete groups had no gradient" in failed
    assert "(alarm at 50.0 %)" in failed
    assert "in 3 of these 4 no member succeeded: take easier tasks" in failed
    (solved,) = alarms(replace(report, groups=replace(groups, unsolved=1)))
    assert "in 3 of these 4 members succeeded: take harder tasks" in solved
    assert alarms(replace(report, groups=replace(groups, without_gradient=3))) == ()
    assert alarms(replace(report, groups=replace(groups, complete=4))) == (), "too few to tell"


def test_a_trajectory_trained_twice_is_called_a_bug(run: SyntheticRun) -> None:
    first, second = run.journal.rows(BatchRow)[:2]
    run.journal.record(replace(second, members=[*second.members, first.members[0]]))
    assert f"1 trajectories were trained twice, e.g. {first.members[0]}: this is a bug." in alarms(
        build_report(run.journal)
    )
