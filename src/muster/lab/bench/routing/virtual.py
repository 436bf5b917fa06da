"""`muster bench routing`: where turns go, and when: the router's four policies on the same work, in one run.

    regime (memory ample, short, work skewed) × policy × seed ─simulate─► hit rate, TTB, imbalance
    the router alone, with 100 to 10,000 live sessions ─► CPU time of a turn

Law: every policy plays the same programs on the same emulated fleet, so that figures are compared within one run. The
best possible hit rate is that of perfect reuse: a group's prompt is computed once, every observation once, and nothing
else. It follows from the programs, whoever serves them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from muster import clock
from muster.engine.config import Policy, RouterConfig
from muster.engine.fleet.router import Router
from muster.journal import BatchRow
from muster.lab.collection.collection import (
    Collected,
    CollectionWorld,
    FleetWorld,
    SandboxWorld,
    TrainingWorld,
    simulate,
)
from muster.lab.collection.workload import Lognormal, WorkloadConfig
from muster.lab.result import BenchResult, Target, Value
from muster.lab.workers import workers

POLICIES: tuple[Policy, ...] = ("round_robin", "least_loaded", "consistent_hash", "affinity")
OURS: Policy = "affinity"
REPLICAS, GROUPS, GROUP_SIZE = 4, 16, 8

AMPLE_TOKENS = 8_000_000
"""Of one replica: no context is ever thrown out."""
SKEWED_TOKENS = 1_000_000
"""Enough on average, not for a replica that got the long ones."""

HIT_OF_BEST = 0.98
CONTROL_GROWTH = 3.0
"""CPU time of a turn with 10,000 sessions over that with 100: logarithms double."""
LIVE = (100, 1_000, 10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """One collection. hit_of_best: its hit rate over the best possible. imbalance: most sampled tokens of a replica
    over the mean."""

    ttb_s: float
    hit_rate: float
    hit_of_best: float
    imbalance: float
    preemptions: int


def worlds() -> dict[str, CollectionWorld]:
    """The regimes: one batch of 128 trajectories, all at once, on four replicas of a 32B model."""
    skewed = WorkloadConfig(
        groups=GROUPS,
        group_size=GROUP_SIZE,
        turns=Lognormal(median=12, sigma=1.6, cap=100),
        shared_variance=0.9,  # a few groups are long as a whole: wherever they are is hot
    )
    plain = WorkloadConfig(groups=GROUPS, group_size=GROUP_SIZE)
    live = GROUPS * GROUP_SIZE
    common = {
        "sandboxes": SandboxWorld(slots=live, verifier_slots=live, warm=8),
        "schedule": {"groups_per_batch": GROUPS, "group_size": GROUP_SIZE, "slots": live},
        "training": TrainingWorld(step_s=0, export_s=0),
    }

    def world(workload: WorkloadConfig, kv_capacity_tokens: int | None) -> CollectionWorld:
        overrides = {} if kv_capacity_tokens is None else {"kv_capacity_tokens": kv_capacity_tokens}
        fleet = FleetWorld(replicas=REPLICAS, preset="h100x2-qwen-32b", overrides=overrides)
        return CollectionWorld.model_validate({"workload": workload, "fleet": fleet, **common})

    return {
        "ample memory": world(plain, AMPLE_TOKENS),
        "short memory": world(plain, None),
        "skewed load": world(skewed, SKEWED_TOKENS),
    }


def run_routing_bench(*, repetitions: int, jobs: int = 0, say: Callable[[str], None]) -> BenchResult:
    """Measure. jobs: processes; 0 for one on each core. `say` gets progress."""
    regimes = worlds()
    todo = [
        _Job(regime=regime, policy=policy, seed=seed)
        for regime in regimes
        for policy in POLICIES
        for seed in range(repetitions)
    ]
    found: dict[tuple[str, Policy], list[Routed]] = {}
    for job, routed in zip(todo, _results(todo, jobs), strict=True):
        found.setdefault((job.regime, job.policy), []).append(routed)
        if job.seed == repetitions - 1:
            say(f"{job.regime}, {job.policy}: TTB {_median(found[job.regime, job.policy], 'ttb_s'):.0f} s")
    control_us = {live: control_cost_us(live) for live in LIVE}
    rows = [_row(regime, policy, own, found[regime, "least_loaded"]) for (regime, policy), own in found.items()]
    return BenchResult(
        name="routing",
        rows=rows,
        targets=targets(found, control_us),
        notes={
            "repetitions": repetitions,
            "replicas": REPLICAS,
            "trajectories": GROUPS * GROUP_SIZE,
            "router_us_per_turn_by_live_sessions": {str(live): us for live, us in control_us.items()},
        },
    )


def targets(found: dict[tuple[str, Policy], list[Routed]], control_us: dict[int, float]) -> list[Target]:
    """Ours beside the others."""
    ample = found["ample memory", OURS]
    aims = [
        Target(
            name="hit_of_best_ample_memory", value=_median(ample, "hit_of_best"), operator=">=", threshold=HIT_OF_BEST
        )
    ]
    for regime in ("skewed load", "short memory"):
        ratios = [a.ttb_s / b.ttb_s for a, b in zip(found[regime, OURS], found[regime, "least_loaded"], strict=True)]
        name = f"worst_ttb_over_least_loaded_{regime.replace(' ', '_')}"
        aims.append(Target(name=name, value=max(ratios), operator="<=", threshold=1.0))
    growth = control_us[LIVE[-1]] / control_us[LIVE[0]]
    aims.append(Target(name="control_growth_100_to_10000", value=growth, operator="<=", threshold=CONTROL_GROWTH))
    return aims


def control_cost_us(live: int, *, turns: int = 20_000, replicas: int = 64) -> float:
    """CPU microseconds of the router for one turn, while `live` sessions take turns and there is memory for half."""
    rng = np.random.default_rng(live)
    router = Router(RouterConfig(hold_s=5.0))
    for i in range(replicas):
        router.join(f"r{i}", kv_capacity_tokens=live * 10_000 // (2 * replicas), capacity=live)
    running: list[tuple[int, int]] = []  # ticket, session
    began = [0] * live  # how often each session has begun
    session_of: dict[int, int] = {}
    free = list(rng.permutation(live))
    spent_s = clock.cpu_s()
    for ticket in range(turns):
        now = ticket * 20.0 / live  # a session's turn comes about every 20 s
        if free:
            who = int(free.pop())
            session_of[ticket] = who
            name, group = f"s{who}/{began[who]}", f"g{who // 8}"
            placed = router.request(ticket, name, group=group, tokens=9_000, reply_tokens=200, now=now)
            running += [(p.ticket, session_of[p.ticket]) for p in placed]
        if len(running) > live // 8 or not free:
            done, who = running.pop(0)
            placed = router.ended(done, tokens=9_200, now=now)
            if done % 4 == 0:
                placed += router.released(f"s{who}/{began[who]}", now)
                began[who] += 1
            running += [(p.ticket, session_of[p.ticket]) for p in placed]
            free.insert(0, who)
    return (clock.cpu_s() - spent_s) / turns * 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One collection, for a worker process."""

    regime: str
    policy: Policy
    seed: int

    def run(self) -> Routed:
        world = worlds()[self.regime]
        collected = simulate(world.with_(fleet={"router": RouterConfig(policy=self.policy)}), self.seed)
        with collected.journal:
            return routed(collected)


def routed(collected: Collected) -> Routed:
    """The figures of a collection of one batch."""
    (batch,) = collected.journal.rows(BatchRow)
    engines = collected.engines
    prompt_tokens = sum(e.prompt_tokens for e in engines)
    best = 1 - _needed_tokens(collected) / prompt_tokens
    sampled = [e.generated_tokens for e in engines]
    return Routed(
        ttb_s=batch.ready_at - batch.opened_at,
        hit_rate=collected.hit_rate,
        hit_of_best=collected.hit_rate / best,
        imbalance=max(sampled) / (sum(sampled) / len(sampled)),
        preemptions=sum(e.preemptions for e in engines),
    )


def _needed_tokens(collected: Collected) -> int:
    """Prompt tokens that must be computed with perfect reuse: each group's prompt, and what each turn but the last
    showed."""
    needed = 0
    for group in range(GROUPS):
        siblings = collected.plan(group)
        needed += siblings[0].prompt_tokens
        needed += sum(turn.observation_tokens for program in siblings for turn in program.turns[:-1])
    return needed


def _row(regime: str, policy: Policy, own: Sequence[Routed], reference: Sequence[Routed]) -> dict[str, Value]:
    ttbs = [r.ttb_s for r in own]
    return {
        "regime": regime,
        "policy": policy,
        "ttb_s": _median(own, "ttb_s"),
        "from": min(ttbs),
        "to": max(ttbs),
        "of least loaded": float(np.median([a.ttb_s / b.ttb_s for a, b in zip(own, reference, strict=True)])),
        "hit rate": _median(own, "hit_rate"),
        "of best": _median(own, "hit_of_best"),
        "imbalance": _median(own, "imbalance"),
        "preempted": int(_median(own, "preemptions")),
    }


def _median(own: Sequence[Routed], figure: str) -> float:
    return float(np.median([getattr(r, figure) for r in own]))


def _results(todo: Sequence[_Job], jobs: int) -> Iterator[Routed]:
    """In order of `todo`, whichever ends first."""
    count = jobs or os.cpu_count() or 1
    if count == 1:
        yield from map(_Job.run, todo)
        return
    with workers(count) as pool:
        yield from pool.map(_Job.run, todo, chunksize=1)
