"""Scenario of a seed: the shape of a run, how long things take, and what goes wrong in it.

Law: pure. `scenario(seed)` is the same value in every process; the world only reads it. Runs are small, since
thousands of them are lived; what varies is everything that scheduling could depend on. Latencies are published ones:

    shell tool call    median 0.85 s, lognormal with sigma 2.0 to 2.5     TraceLab, arXiv 2606.30560, 330 k calls
    reply              median 184 to 252 tokens a turn                    same
    container start    cold image: median 23 s, at most 97 s              AgentCgroup, arXiv 2602.09345
    turns              Terminal-Bench 2: median 20, sigma 1.3; fewer here, for speed: up to 12, or 36 if long
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from muster.engine.config import Policy as RoutingPolicy
from muster.engine.port import CachePolicy, InFlight
from muster.lab.collection.workload import Lognormal
from muster.lab.world.chaos import Fault, stream
from muster.orchestrator.config import BatchPolicy, ConcurrencyConfig, Order, ReuseConfig, Surplus


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Workload: what the simulated model does, in each trajectory."""

    turns: Lognormal  # Terminal-Bench trials: median 20, sigma 1.3; scaled down in most worlds
    reply_tokens: Lognormal  # median 220, sigma 1.1
    tool_s: Lognormal  # median 0.85 s, sigma 2.0 to 2.5
    boot_s: Lognormal  # local 0.3 s, hosted 0.5 s
    verify_s: float
    tasks: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """Machines that serve, hold and train. Seconds and tokens per second."""

    replicas: int
    routing: RoutingPolicy
    streams: int  # requests that one replica decodes at once
    decode_token_s: float
    prefill_tokens_per_s: float
    stage_s: float
    in_flight: InFlight
    cache: CachePolicy
    sandboxes: int
    warm: int
    verifiers: int
    slice_s: float | None  # after which a sandbox gives way to who waits
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """The scheduler's options beyond lag and policy. By default none is used.

    drift: how far a step moves the policy, root-mean-square log-ratio. max_divergence: limit by the odometer.
    refill_k3: limit on what the trainer measures before a step; groups over it are replaced. Both in nats, None: none.
    """

    order: Order = "group"
    over_launch: float = 1.0
    surplus: Surplus = "cancel"
    concurrency: ConcurrencyConfig = field(default_factory=ConcurrencyConfig)
    reuse: ReuseConfig = field(default_factory=ReuseConfig)
    drift: float = 0.01
    max_divergence: float | None = None
    refill_k3: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One world, before it begins. `rates`: probability of each enabled fault per occasion (see `Fault`).

    `kills`: commits of the journal after which the orchestrator dies, one for each of its first lives.
    `outage_at_s`: when the boot outage begins. `keep_every_s`: between two keep points of an attempt; 0: none.
    """

    seed: int
    steps: int
    groups_per_batch: int
    group_size: int
    min_group: int | None
    max_lag: int
    policy: BatchPolicy | None
    slots: int
    max_attempts: int
    checkpoint_every: int
    evaluate_every: int
    time_budget_s: float
    workload: Workload
    fleet: Machines
    rates: Mapping[Fault, float]
    kills: tuple[int, ...] = ()
    outage_at_s: float = 0.0
    keep_every_s: float = 0.0
    scheduling: Scheduling = field(default_factory=Scheduling)


_RATES: Mapping[Fault, tuple[float, float]] = {  # per occasion: fork, command, run of a verifier, request, call, step
    Fault.BOOT_FAILURE: (0.005, 0.05),
    Fault.BOOT_OUTAGE: (0.6, 0.6),
    Fault.SLOW_BOOT: (0.02, 0.3),
    Fault.SANDBOX_HANG: (0.001, 0.02),
    Fault.SANDBOX_SLOW: (0.005, 0.05),
    Fault.SANDBOX_DEATH: (0.002, 0.03),
    Fault.SANDBOX_DESTROYED: (0.01, 0.05),
    Fault.VERIFIER_HANG: (0.005, 0.03),
    Fault.VERIFIER_CRASH: (0.01, 0.05),
    Fault.VERIFIER_LOST: (0.01, 0.05),
    Fault.VERIFIER_BROKEN: (0.03, 0.12),
    Fault.ENGINE_CRASH: (0.3, 0.5),
    Fault.ENGINE_RESTART: (0.3, 1.0),
    Fault.ENGINE_HANG: (0.0005, 0.005),
    Fault.LOST_ACK: (0.01, 0.1),
    Fault.DOUBLED_ACK: (0.05, 0.3),
    Fault.SLOW_PUBLISH: (0.05, 0.3),
    Fault.LONG_TRAJECTORIES: (0.33, 0.33),
    Fault.TRAINER_FAILURE: (0.02, 0.15),
    Fault.KILL: (1.0, 1.0),
}


def scenario(seed: int, faults: Collection[Fault] = tuple(Fault)) -> Scenario:
    """The world of `seed`. Each of `faults` is at work in it or not, by chance, with a rate of its own."""
    rng = stream(seed, "scenario")
    enabled = {f for f in Fault if rng.random() < 0.6} & set(faults)
    rates = {f: float(rng.uniform(*_RATES[f])) for f in Fault}
    group_size = int(rng.integers(2, 6))
    lag = int(rng.choice([0, 0, 1, 1, 2, 4]))
    groups = int(rng.integers(1, 4))
    policy = _policy(rng, lag)
    return Scenario(
        seed=seed,
        steps=int(rng.integers(2, 5)),
        groups_per_batch=groups,
        group_size=group_size,
        min_group=int(rng.integers(2, group_size + 1)) if rng.random() < 0.4 else None,
        max_lag=lag,
        policy=policy,
        slots=int(rng.integers(group_size, group_size * groups * 2 + 1)),
        max_attempts=int(rng.integers(2, 5)),
        checkpoint_every=int(rng.integers(1, 4)),
        evaluate_every=int(rng.integers(0, 4)),
        time_budget_s=float(rng.choice([300.0, 900.0, 1800.0])),
        workload=_workload(rng),
        fleet=_fleet(rng, stream(seed, "fleet"), group_size * groups),
        rates={f: rates[f] for f in Fault if f in enabled},
        kills=tuple(int(n) for n in rng.geometric(1 / 60, size=rng.integers(1, 5))) if Fault.KILL in enabled else (),
        outage_at_s=float(rng.uniform(0.0, 1200.0)),
        keep_every_s=float(stream(seed, "keep").choice([0.0, 1.0, 10.0, 30.0])),
        scheduling=_scheduling(stream(seed, "scheduling"), lag, policy),
    )


def _policy(rng: np.random.Generator, lag: int) -> BatchPolicy | None:
    named: list[BatchPolicy | None] = [None, "cohort", "window", "fifo", "greedy"]
    return named[int(rng.integers(len(named)))] if lag else None


def _scheduling(rng: np.random.Generator, lag: int, policy: BatchPolicy | None) -> Scheduling:
    """Each option in about half of the worlds in which it has a meaning."""
    orders: list[Order] = ["group", "launch", "longest"]
    surplus: list[Surplus] = ["cancel", "carry" if lag else "tail"]
    kinds: list[Literal["fixed", "memory", "aimd"]] = ["fixed", "fixed", "memory", "aimd"]
    drift = float(rng.uniform(0.001, 0.1))
    over_launch = float(rng.choice([1.0, 1.0, 1.25, 2.0]))
    steps = float(rng.choice([0.0, 0.0, 0.5, 1.5, 2.5]))  # of drift that may lie between token and trainer
    lags = float(rng.choice([0.0, 0.0, 0.5, 1.5]))  # likewise, as the trainer measures it
    return Scheduling(
        order=orders[int(rng.integers(len(orders)))],
        over_launch=1.0 if policy in ("cohort", "fifo") else over_launch,
        surplus=surplus[int(rng.integers(len(surplus)))],
        concurrency=ConcurrencyConfig(
            policy=kinds[int(rng.integers(len(kinds)))],
            fill=float(rng.uniform(0.05, 0.5)),
            start=int(rng.integers(1, 9)),
            increase=1,
            interval_s=60.0,
            least=int(rng.integers(1, 4)),
        ),
        reuse=ReuseConfig(
            enabled=bool(rng.random() < 0.5), below=0.6, max_share=0.25, max_divergence=3 * drift, max_uses=2
        ),
        drift=drift,
        max_divergence=steps * drift if lag and steps else None,
        refill_k3=(lags * drift) ** 2 / 2 if lag and lags else None,
    )


def _workload(rng: np.random.Generator) -> Workload:
    turns = float(rng.choice([1.0, 2.0, 6.0], p=[0.6, 0.35, 0.05]))
    return Workload(
        turns=Lognormal(median=turns, sigma=1.0, cap=12.0),
        reply_tokens=Lognormal(median=float(rng.choice([60.0, 220.0], p=[0.7, 0.3])), sigma=1.1, cap=1500.0),
        tool_s=Lognormal(median=0.85, sigma=float(rng.uniform(2.0, 2.5)), cap=600.0),
        boot_s=Lognormal(median=float(rng.choice([0.01, 0.3, 0.5])), sigma=1.0, cap=97.0),
        verify_s=Lognormal(median=2.0, sigma=1.5, cap=120.0).draw(rng),
    )


def _fleet(rng: np.random.Generator, more: np.random.Generator, batch: int) -> Machines:
    """`more`: a generator for what came later, so that old seeds are still the old worlds in the rest."""
    routings: list[RoutingPolicy] = ["affinity", "affinity", "round_robin", "least_loaded", "consistent_hash"]
    return Machines(
        replicas=int(rng.integers(1, 4)),
        routing=routings[int(more.integers(len(routings)))],
        streams=int(rng.integers(2, 33)),
        decode_token_s=float(rng.uniform(0.005, 0.05)),
        prefill_tokens_per_s=float(rng.uniform(1000.0, 20_000.0)),
        stage_s=Lognormal(median=1.0, sigma=1.5, cap=60.0).draw(rng),
        in_flight=InFlight(rng.choice(list(InFlight))),
        cache=CachePolicy(rng.choice(list(CachePolicy))),
        sandboxes=int(rng.integers(2, batch * 2 + 2)),
        warm=int(rng.integers(0, 5)),
        verifiers=int(rng.integers(1, 5)),
        slice_s=float(more.uniform(5.0, 120.0)) if more.random() < 0.4 else None,
        step_s=Lognormal(median=20.0, sigma=1.0, cap=300.0).draw(rng),
    )
