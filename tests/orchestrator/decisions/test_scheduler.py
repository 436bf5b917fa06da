from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from factories import failure, infra, make_statistics, make_task, make_trajectory, success
from muster.orchestrator.config import SchedulerConfig
from muster.orchestrator.decisions.groups import Assembly, Closed, Group
from muster.orchestrator.decisions.scheduler import Scheduler
from muster.rollout.keeping import KEPT
from muster.types import Batch, Launch, Outcome, Task


class Source:
    """Fresh tasks in order, and what was recorded of them."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, tuple[float, ...]]] = []
        self._count = 0

    def next(self) -> Task:
        self._count += 1
        return make_task(f"task{self._count}")

    def record(self, task_id: str, rewards: Sequence[float]) -> None:
        self.recorded.append((task_id, tuple(rewards)))


def scheduler(*, steps: int = 10, **options: object) -> Scheduler:
    config = SchedulerConfig.model_validate({"groups_per_batch": 2, "group_size": 2, "slots": 8, **options})
    made = Scheduler(config, Source(), steps=steps)
    made.begin(0.0)
    return made


def end(s: Scheduler, launch: Launch, outcome: Outcome, *, version: int = 0, now: float = 1.0) -> Closed | None:
    return s.ended(make_trajectory(launch, outcome, version=version), now)


def finish_group(s: Scheduler, launches: Sequence[Launch], rewards: Sequence[float], *, version: int = 0) -> Closed:
    closed = None
    for launch, reward in zip(launches, rewards, strict=True):
        closed = end(s, launch, success(reward) if reward else failure(), version=version)
    assert closed is not None
    return closed


def test_on_policy_admits_exactly_one_batch_and_waits_for_its_version() -> None:
    s = scheduler()
    launches = s.admit().launches
    assert [x.id for x in launches] == ["g000000.0", "g000000.1", "g000001.0", "g000001.1"]
    assert s.admit().launches == ()
    for group in (launches[:2], launches[2:]):
        finish_group(s, group, (1.0, 0.0))
    batch = s.assemble(5.0).batch
    assert batch is not None
    assert (batch.step, batch.opened_at, batch.ready_at) == (0, 0.0, 5.0)
    assert s.admit().launches == ()  # version 1 does not serve yet
    s.published(1)
    assert len(s.admit().launches) == 4


def test_lag_one_admits_the_next_batch_while_the_trainer_works() -> None:
    s = scheduler(max_lag=1)
    assert len(s.admit().launches) == 8


def test_nothing_is_admitted_beyond_the_last_step() -> None:
    s = scheduler(max_lag=5, steps=1, slots=100)
    assert len(s.admit().launches) == 4


def test_a_free_slot_never_waits_but_started_groups_come_first() -> None:
    s = scheduler(slots=2, group_size=3)
    first = s.admit().launches
    assert [x.id for x in first] == ["g000000.0", "g000000.1"]
    end(s, first[0], success())
    end(s, first[1], success())
    assert [x.id for x in s.admit().launches] == ["g000000.2", "g000001.0"]


def test_a_group_larger_than_the_slots_still_starts() -> None:
    s = scheduler(slots=1)
    (only,) = s.admit().launches
    end(s, only, success())
    (second,) = s.admit().launches
    assert (only.group_id, second.group_id) == ("g000000", "g000000")


def test_a_sibling_lost_to_infrastructure_is_launched_again_alone() -> None:
    s = scheduler()
    launches = s.admit().launches
    assert end(s, launches[0], infra()) is None
    (refill,) = s.admit().launches
    assert (refill.id, refill.sibling, refill.attempt) == ("g000000.0a1", 0, 1)
    end(s, launches[1], success())
    closed = end(s, refill, failure())
    assert closed is not None
    assert closed.ready is not None
    assert closed.ready.rewards == (0.0, 1.0)


def test_a_group_that_stays_short_is_dropped_with_a_reason_and_replaced() -> None:
    s = scheduler(max_attempts=1)
    launches = s.admit().launches
    end(s, launches[0], infra())
    closed = end(s, launches[1], success())
    assert closed == Closed(group_id="g000000", drop_reason="short")
    admission = s.admit()
    assert [g.replaces for g in admission.groups] == ["g000000"]


def lost_at(own_s: float) -> Outcome:
    """By infrastructure, with its last keep point there."""
    return replace(infra(), evidence={KEPT: {"own_s": own_s}} if own_s else {})


def test_attempts_that_get_further_and_further_do_not_count_against_their_sibling() -> None:
    s = scheduler(slots=1, max_attempts=2)
    for own_s in (10.0, 20.0, 30.0, 30.0, 40.0):
        (launch,) = s.admit().launches
        assert launch.sibling == 0
        assert end(s, launch, lost_at(own_s)) is None
    assert s.statistics().queued == 2, "the fourth alone came to nothing"
    (launch,) = s.admit().launches
    end(s, launch, lost_at(0.0))
    assert [x.sibling for x in s.admit().launches] == [1]


@given(ends=st.lists(st.floats(0, 100), max_size=30), most=st.integers(1, 4))
def test_a_sibling_is_given_up_at_its_last_fruitless_launch_and_a_resume_counts_the_same(
    ends: list[float], most: int
) -> None:
    s = scheduler(slots=1, max_attempts=most, infra_alarm_window=1000)
    again = Group(id="g000000", task=make_task(), submission=0, version=0)
    fruitless, furthest_s = 0, 0.0
    for own_s in ends:
        (launch,) = s.admit().launches
        if launch.sibling != 0:
            break
        assert fruitless < most
        end(s, launch, lost_at(own_s))
        again.lost(0, own_s)
        fruitless, furthest_s = fruitless + (own_s <= furthest_s), max(furthest_s, own_s)
        assert again.fruitless.get(0, 0) == fruitless
    else:
        assert fruitless <= most
        return
    assert fruitless == most


def test_a_short_group_trains_when_min_group_allows() -> None:
    s = scheduler(group_size=3, min_group=2, max_attempts=1)
    launches = s.admit().launches[:3]
    end(s, launches[0], infra())
    end(s, launches[1], success())
    closed = end(s, launches[2], failure())
    assert closed is not None
    assert closed.ready is not None
    assert len(closed.ready.members) == 2


def test_a_group_without_gradient_feeds_the_curriculum_and_is_replaced_before_the_batch_closes() -> None:
    s = scheduler()
    launches = s.admit().launches
    closed = finish_group(s, launches[:2], (1.0, 1.0))
    assert closed.drop_reason == "no_gradient"
    assert s.assemble(1.0).batch is None
    (replacement,) = s.admit().groups
    assert replacement.replaces == "g000000"


def test_a_group_too_stale_for_its_batch_is_dropped_and_replaced() -> None:
    s = scheduler(max_lag=1, policy="greedy", slots=100)
    launches = s.admit().launches
    old, *rest = (launches[i : i + 2] for i in (0, 2, 4, 6))
    for group in rest[:2]:
        finish_group(s, group, (1.0, 0.0))
    assert s.assemble(1.0).batch is not None
    s.published(1)
    newer = s.admit().launches
    for group in (rest[2], newer[:2]):
        finish_group(s, group, (1.0, 0.0), version=1)
    assert s.assemble(2.0).batch is not None
    finish_group(s, old, (1.0, 0.0), version=0)  # would be trained by version 2
    assembly = s.assemble(3.0)
    assert [c.drop_reason for c in assembly.dropped] == ["too_stale"]


def test_live_work_of_a_group_that_no_batch_can_take_any_more_is_given_up_at_once() -> None:
    s = scheduler(max_lag=0, policy="greedy", groups_per_batch=1, slots=100, steps=3)
    old = s.admit().launches
    end(s, old[0], success(), version=0)
    late = s.restore(version=1, assembled=1, submissions=1, ready=(), groups=(), now=1.0)  # version 1 was published
    assert late == []
    assembly = s.assemble(2.0)
    assert [c.drop_reason for c in assembly.dropped] == ["too_stale"]
    assert assembly.cancel == {old[1].id: "too_stale"}
    assert s.statistics().live == 1, "its slot is taken until it is gone"
    s.cancelled(old[1].id)
    assert s.statistics().live == 0
    assert s.assemble(3.0).cancel == {}


def test_one_that_ended_while_it_was_being_cancelled_changes_nothing() -> None:
    s = scheduler(max_lag=0, policy="greedy", groups_per_batch=1, slots=100, steps=3)
    old = s.admit().launches
    end(s, old[0], success(), version=0)
    s.restore(version=1, assembled=1, submissions=1, ready=(), groups=(), now=1.0)
    assert s.assemble(2.0).cancel
    assert end(s, old[1], failure(), version=0) is None
    assert s.statistics().live == 0


def test_too_many_infrastructure_failures_stop_admission() -> None:
    s = scheduler(infra_alarm_window=4, infra_alarm_rate=0.5, max_attempts=5)
    for launch in s.admit().launches:
        end(s, launch, infra())
    assert s.alarm is not None
    assert "100%" in s.alarm
    assert s.admit().launches == ()


def test_a_restored_run_relaunches_only_what_is_missing() -> None:
    s = scheduler()
    task = make_task()
    kept = Launch(id="g000004.0", group_id="g000004", task=task, sibling=0)
    group = Group(
        id="g000004",
        task=task,
        submission=4,
        version=2,
        members={0: make_trajectory(kept, success(), version=2)},
        launches={0: 1, 1: 1},
    )
    assert s.restore(version=2, assembled=2, submissions=5, ready=(), groups=[group], now=0.0) == []
    launches = s.admit().launches
    assert launches[0].id == "g000004.1a1"
    assert launches[1].group_id == "g000005"


def test_a_restored_group_too_stale_for_the_next_batch_is_dropped() -> None:
    s = scheduler()
    task = make_task()
    kept = Launch(id="g000004.0", group_id="g000004", task=task, sibling=0)
    group = Group(
        id="g000004", task=task, submission=4, version=1, members={0: make_trajectory(kept, success(), version=1)}
    )
    (closed,) = s.restore(version=2, assembled=2, submissions=5, ready=(), groups=[group], now=0.0)
    assert closed.drop_reason == "too_stale"


def test_a_restored_group_whose_members_are_all_graded_is_closed_at_once() -> None:
    s = scheduler()
    task = make_task()
    members = {
        i: make_trajectory(
            Launch(id=f"g000004.{i}", group_id="g000004", task=task, sibling=i),
            success() if i else failure(),
            version=2,
        )
        for i in range(2)
    }
    group = Group(id="g000004", task=task, submission=4, version=2, members=members)
    (closed,) = s.restore(version=2, assembled=2, submissions=5, ready=(), groups=[group], now=0.0)
    assert closed.ready is not None
    assert s.statistics().ready_groups == 1


def test_a_minimum_above_the_group_size_is_refused() -> None:
    with pytest.raises(ValidationError, match="min_group"):
        SchedulerConfig(group_size=4, min_group=5)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    max_lag=st.integers(0, 3),
    slots=st.integers(1, 12),
    policy=st.sampled_from([None, "fifo", "window", "greedy"]),
    infra_rate=st.floats(0, 0.4),
)
def test_any_order_of_endings_forms_every_batch_and_loses_nothing(
    seed: int, max_lag: int, slots: int, policy: str | None, infra_rate: float
) -> None:
    rng = np.random.default_rng(seed)
    steps = 4
    s = scheduler(
        steps=steps, max_lag=max_lag, slots=slots, policy=policy, max_attempts=4, infra_alarm_rate=1.0, group_size=3
    )
    version, live, launched, dropped, trained, waiting = 0, [], set(), [], [], 0

    def take(assembly: Assembly) -> int:
        dropped.extend(c.group_id for c in assembly.dropped)
        for given_up in [x for x in live if x[0].id in assembly.cancel and rng.random() < 0.5]:  # the others end first
            live.remove(given_up)
            s.cancelled(given_up[0].id)
        if assembly.batch is None:
            return 0
        trained.extend(assembly.batch.groups)
        for group in assembly.batch.groups:
            assert len(group.members) == 3 and group.has_gradient
            assert assembly.batch.step - group.oldest_version <= max_lag
        return 1

    for _ in range(5000):
        if version == steps:
            break
        launches = s.admit().launches
        assert launched.isdisjoint(x.id for x in launches)
        launched.update(x.id for x in launches)
        live += [(x, version) for x in launches]
        assert len(live) <= slots
        if live and (waiting == 0 or rng.random() < 0.7):
            launch, sampled_under = live.pop(int(rng.integers(len(live))))
            outcome = infra() if rng.random() < infra_rate else success() if rng.random() < 0.5 else failure()
            closed = end(s, launch, outcome, version=sampled_under)
            if closed and closed.drop_reason:
                dropped.append(closed.group_id)
            waiting += take(s.assemble(1.0))
        elif waiting:
            version, waiting = version + 1, waiting - 1
            s.published(version)
            waiting += take(s.assemble(1.0))
        else:
            raise AssertionError("nothing is live and no batch is ready: a deadlock")
    assert version == steps
    assert len(trained) == steps * 2
    ids = [g.id for g in trained]
    assert len(set(ids)) == len(ids)
    assert set(ids).isdisjoint(dropped)
    assert s.statistics().open_groups + s.statistics().ready_groups == 0 or max_lag > 0 or policy == "greedy"


# --- over-launching, orders, concurrency -----------------------------------------------------------------


def over_launched(**options: Any) -> tuple[Scheduler, dict[str, list[Launch]]]:
    """Two groups a batch, three launched; the launches by group."""
    s = scheduler(over_launch=1.5, **options)
    return s, by_group(s.admit().launches)


def by_group(launches: Sequence[Launch]) -> dict[str, list[Launch]]:
    groups: dict[str, list[Launch]] = {}
    for launch in launches:
        groups.setdefault(launch.group_id, []).append(launch)
    return groups


def test_surplus_is_cancelled_the_moment_a_batch_is_assembled() -> None:
    s, groups = over_launched()
    assert len(groups) == 3
    finish_group(s, groups["g000002"], (1.0, 0.0))
    finish_group(s, groups["g000001"], (1.0, 0.0))
    assembly = s.assemble(2.0)
    assert assembly.batch is not None
    assert [g.id for g in assembly.batch.groups] == ["g000001", "g000002"]
    assert assembly.dropped == (Closed(group_id="g000000", drop_reason="surplus"),)
    assert assembly.cancel == {"g000000.0": "surplus", "g000000.1": "surplus"}
    s.published(1)
    assert [g.replaces for g in s.admit().groups] == [None, None, None], "what was surplus needs no replacement"


def test_surplus_that_is_carried_goes_on_for_the_next_batch() -> None:
    s, groups = over_launched(surplus="carry", max_lag=1, steps=3, slots=100, policy="greedy")
    for id in ("g000001", "g000002"):
        finish_group(s, groups[id], (1.0, 0.0))
    assembly = s.assemble(2.0)
    assert assembly.batch is not None
    assert assembly.dropped == ()
    finish_group(s, groups["g000000"], (1.0, 0.0))
    finish_group(s, groups["g000003"], (1.0, 0.0))
    following = s.assemble(3.0).batch
    assert following is not None
    assert [g.id for g in following.groups] == ["g000000", "g000003"]


def test_the_tail_is_put_off_and_gets_a_batch_of_its_own() -> None:
    s, groups = over_launched(surplus="tail", steps=4)
    version = 0
    put_off: list[str] = []
    while len(put_off) < 2:
        slowest, *others = sorted(groups)
        put_off.append(groups[slowest][0].task.id)
        for id in others:
            finish_group(s, groups[id], (1.0, 0.0), version=version)
        assembly = s.assemble(2.0)
        assert [c.drop_reason for c in assembly.dropped] == ["put_off"]
        for launch_id in assembly.cancel:
            s.cancelled(launch_id)
        version += 1
        s.published(version)
        groups = by_group(s.admit().launches)
    assert [launches[0].task.id for launches in groups.values()] == put_off, "no others, and none too many"
    for launches in groups.values():
        finish_group(s, launches, (1.0, 0.0), version=version)
    assert s.assemble(3.0).batch is not None
    s.published(version + 1)
    assert len(by_group(s.admit().launches)) == 3


def test_a_run_that_resumes_still_tries_what_was_put_off() -> None:
    s = scheduler(over_launch=1.5, surplus="tail", policy="greedy")
    tasks = [("g000000", make_task("slow")), ("g000003", make_task("slower"))]
    s.restore(version=2, assembled=2, submissions=6, ready=(), groups=(), now=0.0, put_off=tasks)
    admission = s.admit()
    assert [(g.replaces, g.task.id) for g in admission.groups] == [("g000000", "slow"), ("g000003", "slower")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"over_launch": 1.5, "policy": "cohort"}, "nothing overtakes"),
        ({"over_launch": 1.5, "surplus": "carry"}, "max_lag of at least 1"),
        ({"surplus": "tail", "max_lag": 1}, "max_lag = 0"),
    ],
)
def test_over_launching_that_could_do_nothing_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SchedulerConfig.model_validate(options)


def test_launch_order_takes_first_siblings_of_all_groups_and_refills_last() -> None:
    s = scheduler(order="launch", slots=1)
    order: list[str] = []
    for outcome in (infra(), success(), success(), failure(), failure()):
        (launch,) = s.admit().launches
        order.append(launch.id)
        end(s, launch, outcome)
    assert order == ["g000000.0", "g000001.0", "g000000.1", "g000001.1", "g000000.0a1"]


def test_the_longest_expected_goes_first_within_its_batch() -> None:
    s = scheduler(order="longest", slots=1)
    expectation = {"tasks": {"task1": 10.0, "task2": 90.0}, "all": 50.0}
    s.restore(version=0, assembled=0, submissions=0, ready=(), groups=(), now=0.0, state={"expectation": expectation})
    assert [x.id for x in s.admit().launches] == ["g000001.0"]
    assert [x.id for x in s.upcoming(9)] == ["g000001.1", "g000000.0", "g000000.1"]


def test_batches_given_back_open_again_and_are_filled_from_what_is_ready() -> None:
    s = scheduler(max_lag=1, policy="greedy", slots=100, steps=3)
    groups = by_group(s.admit().launches)
    batches: list[Batch] = []
    for first in (0, 2):
        for id in (f"g{first:06d}", f"g{first + 1:06d}"):
            finish_group(s, groups[id], (1.0, 0.0))
        batch = s.assemble(float(first + 1)).batch
        assert batch is not None
        batches.append(batch)
    closed = s.give_back(batches, {"g000000": "diverged"})
    assert closed == (Closed(group_id="g000000", drop_reason="diverged"),)
    again = s.assemble(9.0).batch
    assert again is not None
    assert (again.step, again.opened_at, again.ready_at) == (0, 0.0, 9.0)
    assert [g.id for g in again.groups] == ["g000001", "g000002"]
    assert [g.replaces for g in s.admit().groups] == ["g000000"]


def test_a_measured_distance_ends_groups_that_the_lag_would_still_allow() -> None:
    s = scheduler(max_lag=3, max_divergence=0.1, policy="greedy", slots=100)
    groups = by_group(s.admit().launches)
    for id in ("g000000", "g000001"):
        finish_group(s, groups[id], (1.0, 0.0))
    end(s, groups["g000002"][0], success())
    assert s.assemble(1.0).batch is not None
    s.moved(1, 0.3)
    assembly = s.assemble(2.0)
    assert [(c.group_id, c.drop_reason) for c in assembly.dropped] == [("g000002", "diverged")]
    assert assembly.cancel == {"g000002.1": "diverged"}


def test_fewer_are_live_when_the_cache_does_not_hold_them() -> None:
    s = scheduler(slots=8, groups_per_batch=8, concurrency={"policy": "memory", "least": 2})
    launches = s.admit().launches
    s.observe([make_statistics(kv_capacity_tokens=20)], now=1.0)
    tokens = sum(len(segment.tokens_T) for segment in make_trajectory(launches[0], success()).segments)
    end(s, launches[0], success())
    assert s.statistics().limit == int(20 / (tokens / 2))
    assert s.admit().launches == ()
