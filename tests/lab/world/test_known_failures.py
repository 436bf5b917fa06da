"""Known failures of other systems, each as a test. Rows about scheduling, groups, staleness, resume and liveness.

    what went wrong                                  must hold                              tested by
    infrastructure failure trained as reward 0       neither gradient nor baseline          1
    model time-outs masked, stalling unpunished      graded on the final state              2; rollout/test_attempt
    masked rows still in the group mean              baseline over graded members           trainer/test_advantage
    uneven groups, advantage = reward / eps          per-group baseline, no blow-up         trainer/test_advantage
    several segments counted as several members      a trajectory counts once               trainer/test_advantage
    one sibling never returns                        batches form, also after a kill        3
    dead collector, trainer polls an empty buffer    the error reaches the consumer         4; orchestrator/test_loops
    one unbounded verification holds everything      deadlines from outside                 5; sandbox/test_deadlines
    finished work silently dropped                   counts add up, drops have reasons      6
    staleness miscounted                             the bound holds in training            7
    version read around the call                     versions per token, from the engine    8; test_breaks
    dropping stale work starves slow, hard tasks     slow groups train as often             9; bench/test_selection
    publish waits for a slow batch                   weights go out when ready              10
    pause deadlocks; a retried update ends the run   idempotent, with deadlines             11; publish/test_publisher
    updates that did nothing or corrupted weights    digest and canary after a commit       12; publish/test_publisher
    batch not divisible by ranks                     no sample twice or deleted             trainer/test_packing
    a stop waits for work that is already discarded  it is cancelled                        16, 17
    cancelled rollouts keep sandboxes                all return to zero                     13
    long trials hold the slots for hours             slots come back at the budget          14, 18
    evaluation spans versions, or stalls rollouts    pinned, beside training                15; test_evaluate
    infrastructure fails and the run "learns" on     a named alarm, admission stops         orchestrator/test_loops
    one replica dies, and the run with it            the others take its work               19

A number is a test of this file, a name another file of the tests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from lab.worlds import lived, quiet
from muster import clock
from muster.journal import BatchRow, DropRow, EventRow, GroupRow, Journal, LaunchRow, StepRow, TrajectoryRow
from muster.lab.fakes.sandbox import FakeBackend
from muster.lab.world.chaos import Fault
from muster.lab.world.scenario import Scheduling
from muster.sandbox.config import SandboxConfig
from muster.sandbox.pool.pool import Pool
from muster.types import ImageSpec, Limits


def graded(journal: Journal) -> list[TrajectoryRow]:
    return [t for t in journal.rows(TrajectoryRow, "purpose = 'train'") if t.reward is not None]


def test_1_what_the_world_did_is_in_neither_gradient_nor_baseline() -> None:
    faults = {Fault.SANDBOX_DEATH: 0.05, Fault.BOOT_FAILURE: 0.1, Fault.VERIFIER_LOST: 0.1}
    world, journal = lived(quiet(4, max_attempts=5), faults)
    lost = {t.id for t in journal.rows(TrajectoryRow) if t.verdict == "infra"}
    assert lost, "the world did something"
    assert all(t.reward is None for t in journal.rows(TrajectoryRow) if t.id in lost)
    assert not lost & {m for batch in journal.rows(BatchRow) for m in batch.members}
    assert world.injected["sandbox_death"] > 0


def test_2_a_model_that_stalls_is_graded_on_what_it_left() -> None:
    _, journal = lived(quiet(6, time_budget_s=60.0), {Fault.LONG_TRAJECTORIES: 0.5})
    spent = [t for t in journal.rows(TrajectoryRow) if t.cause in ("time_budget", "turn_budget", "token_budget")]
    assert spent
    assert all(t.verdict == "failure" and t.reward == 0.0 for t in spent)


@pytest.mark.parametrize("fault", [Fault.SANDBOX_HANG, Fault.ENGINE_HANG])
@pytest.mark.parametrize("kills", [(), (40, 60)])
def test_3_a_sibling_that_never_returns_holds_no_batch_also_after_a_kill(fault: Fault, kills: tuple[int, ...]) -> None:
    world, journal = lived(quiet(5, kills=kills, max_attempts=5), {fault: 0.05})
    assert world.injected[fault] > 0
    assert journal.count(StepRow) == quiet(5).steps


def test_4_a_trainer_that_fails_stops_the_run_with_its_cause() -> None:
    world, journal = lived(quiet(2), {Fault.TRAINER_FAILURE: 0.5})
    stops = [e.message for e in journal.rows(EventRow) if e.kind == "stopped"]
    assert len(stops) == world.stops["TrainerError"] > 0
    assert all(message.startswith("injected at step") for message in stops)


def test_5_a_verifier_that_hangs_holds_nothing() -> None:
    world, journal = lived(quiet(8, max_attempts=5), {Fault.VERIFIER_HANG: 0.2})
    assert world.injected["verifier_hang"] > 0
    assert journal.count(StepRow) == quiet(8).steps


def test_6_what_was_dispatched_is_trained_kept_or_dropped_with_a_reason() -> None:
    _, journal = lived(quiet(9, max_lag=2, policy="greedy", kills=(50, 50)), {Fault.SANDBOX_DEATH: 0.02})
    launches = {x.id: x for x in journal.rows(LaunchRow, "purpose = 'train'")}
    drops = {d.id: d.reason for d in journal.rows(DropRow) if d.id in launches}
    groups = {g.id: g for g in journal.rows(GroupRow)}
    trained = {m for batch in journal.rows(BatchRow) for m in batch.members}
    ends: Counter[str] = Counter()
    for id, launch in launches.items():
        group = groups[launch.group_id]
        ends["trained" if id in trained else drops.get(id) or group.drop_reason or "ungraded, or its group waits"] += 1
    assert ends.total() == len(launches)
    assert {"trained", "interrupted"} <= ends.keys()


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_7_no_batch_is_older_than_the_bound_also_in_the_first_step_after_a_resume(max_lag: int) -> None:
    _, journal = lived(quiet(10, max_lag=max_lag, policy=None, steps=6, kills=(70, 60, 50)))
    members = {t.id: t for t in graded(journal)}
    lags = [
        batch.step - version
        for batch in journal.rows(BatchRow)
        for m in batch.members
        if (version := members[m].oldest_version) is not None
    ]
    assert 0 <= min(lags) <= max(lags) <= max_lag


def test_8_tokens_of_one_trajectory_carry_the_versions_that_made_them() -> None:
    """The laws compare each token's log-probability with the weights of its label; here some have two labels."""
    mixed = 0
    for seed in range(4):
        _, journal = lived(quiet(seed, max_lag=2, steps=6, policy="greedy"))
        mixed += sum(t.oldest_version != t.newest_version for t in graded(journal))
    assert mixed > 0


def test_9_slow_groups_are_trained_as_often_as_they_are_sampled() -> None:
    slow, quick = [0, 0], [0, 0]  # trained, of how many
    for seed in range(2):
        world = quiet(seed, max_lag=1, policy=None, steps=6, groups_per_batch=3, group_size=3, min_group=None)
        _, journal = lived(world, {Fault.LONG_TRAJECTORIES: 0.33})
        duration: dict[str, float] = {}
        for t in graded(journal):
            duration[t.group_id] = max(duration.get(t.group_id, 0.0), t.ended - t.started)
        groups = [g for g in journal.rows(GroupRow) if g.ready_at is not None]
        median = float(np.median([duration[g.id] for g in groups]))
        for group in groups:
            kind = slow if duration[group.id] > median else quick
            kind[0] += group.state == "trained"
            kind[1] += 1
    assert slow[0] / slow[1] >= 0.9 * quick[0] / quick[1]


def test_10_weights_go_out_when_they_are_ready_whatever_is_still_collected() -> None:
    world = quiet(11, max_lag=2, steps=6, groups_per_batch=1)
    _, journal = lived(world, {Fault.LONG_TRAJECTORIES: 0.33})
    longest_reply_s = 1600 * world.fleet.decode_token_s + 30_000 / world.fleet.prefill_tokens_per_s
    slowest = max(p.latency_s for p in journal.publications())
    assert slowest <= world.fleet.stage_s + longest_reply_s + 2.0
    longest = max(t.ended - t.started for t in graded(journal))
    assert longest > slowest, "a trajectory that lasted longer held nothing back"


def test_11_lost_doubled_and_late_answers_neither_wedge_a_publication_nor_end_the_run() -> None:
    faults = {Fault.LOST_ACK: 0.15, Fault.DOUBLED_ACK: 0.5, Fault.SLOW_PUBLISH: 0.2}
    world, journal = lived(quiet(12, max_lag=1, steps=6), faults)
    assert world.lives == 1
    assert world.injected["lost_ack"] > 0
    assert {e.kind for e in journal.rows(EventRow)} <= {"publish_failed"}


def test_12_a_replica_that_restarted_with_old_weights_gets_the_present_ones_and_serves_again() -> None:
    world, journal = lived(quiet(13, steps=10), {Fault.ENGINE_RESTART: 1.0})
    assert world.injected["engine_restart"] > 0
    assert "republished" in {e.kind for e in journal.rows(EventRow)}


def test_13_a_thousand_cancelled_leases_return_to_zero() -> None:
    async def main() -> tuple[int, int, int]:
        backend = FakeBackend()
        pool = Pool(backend, SandboxConfig(slots=200, warm=10))
        snapshot = await backend.prepare(ImageSpec())

        async def hold(index: int) -> None:
            async with pool.lease(snapshot, Limits(), str(index)) as lease:
                await lease.sandbox.run("sleep 1000", timeout_s=2000)

        tasks = [asyncio.ensure_future(hold(i)) for i in range(1000)]
        await clock.sleep(5.0)
        live = backend.live
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await pool.close()
        agents = pool.statistics().agent
        return live, backend.live, agents.live + agents.waiting + agents.closing

    assert clock.run_virtual(main()) == (200, 0, 0)


def test_14_a_long_trial_gives_its_slot_back_at_its_budget() -> None:
    world = quiet(14, time_budget_s=300.0)
    _, journal = lived(world, {Fault.LONG_TRAJECTORIES: 0.33})
    for t in journal.rows(TrajectoryRow):
        own_s = sum(turn["duration_s"] for turn in t.turns) + t.sampled_tokens / 50.0
        assert own_s <= 300.0 + 1600 / 50.0 + 0.2


def test_15_an_evaluation_holds_one_version_while_collection_goes_on() -> None:
    beside = 0
    for seed in range(3):
        _, journal = lived(quiet(seed, max_lag=2, steps=4, evaluate_every=1))
        for evaluation in journal.evaluations():
            period = evaluation.started, evaluation.ended
            rows = journal.rows(TrajectoryRow, "purpose = 'evaluate' AND started >= ? AND ended <= ?", *period)
            versions = {v for t in rows for v in (t.oldest_version, t.newest_version) if v is not None}
            assert versions <= {evaluation.version.number}
            beside += journal.count(LaunchRow, "purpose = 'train' AND at > ? AND at < ?", *period)
    assert beside > 0


def test_16_work_that_no_batch_can_take_any_more_is_cancelled_at_once() -> None:
    for seed in range(20):
        options = {"max_lag": 1, "policy": "greedy", "steps": 8, "groups_per_batch": 1, "group_size": 4, "slots": 24}
        _, journal = lived(quiet(seed, min_group=None, **options), {Fault.LONG_TRAJECTORIES: 0.33})
        stale = {g.id: g.closed_at for g in journal.rows(GroupRow) if g.drop_reason == "too_stale"}
        cancelled = journal.rows(DropRow)
        assert all(d.reason == "too_stale" and d.at == stale[d.id.partition(".")[0]] for d in cancelled)
        if cancelled:
            return
    pytest.fail("nothing became too stale while it was live")


def test_17_an_oversampled_batch_does_not_wait_for_the_judges_of_what_it_leaves() -> None:
    world = quiet(3, max_lag=0, policy=None, steps=3, groups_per_batch=2, group_size=3, min_group=None, slots=24)
    world = replace(
        world,
        scheduling=Scheduling(over_launch=2.0, surplus="cancel"),
        workload=replace(world.workload, verify_s=600.0),
        fleet=replace(world.fleet, sandboxes=30, verifiers=3),
    )
    _, journal = lived(world)
    surplus = {g.id: g.closed_at for g in journal.rows(GroupRow) if g.drop_reason == "surplus"}
    cancelled = [d for d in journal.rows(DropRow) if d.reason == "surplus"]
    assert cancelled, "some were in front of their judge, or before it"
    assert all(d.at == surplus[d.id.partition(".")[0]] for d in cancelled)
    ready = {batch.ready_at for batch in journal.rows(BatchRow)}
    assert set(surplus.values()) <= ready, "at the instant at which the batch was ready"


def test_18_batches_go_on_while_a_third_of_the_trials_are_ten_times_as_long() -> None:
    world = quiet(14, max_lag=4, policy="window", steps=8, groups_per_batch=1, slots=24, time_budget_s=1800.0)
    world = replace(world, fleet=replace(world.fleet, sandboxes=24, slice_s=None))
    _, journal = lived(world, {Fault.LONG_TRAJECTORIES: 0.33})
    longest = max(graded(journal), key=lambda t: t.ended - t.started)
    meanwhile = [s for s in journal.rows(StepRow) if longest.started < s.ended < longest.ended]
    assert len(meanwhile) >= 2, "steps were made while it held its slot"


def test_19_a_replica_that_dies_among_several_stops_nothing() -> None:
    for seed in range(3):
        world = quiet(seed, steps=4, max_lag=1, policy=None)
        world = replace(world, fleet=replace(world.fleet, replicas=3))
        told, journal = lived(world, {Fault.ENGINE_CRASH: 1.0, Fault.LONG_TRAJECTORIES: 0.33})
        assert not told.stops
        assert journal.count(StepRow) == 4
