"""`muster bench selection`: four ways to choose which groups train, and whether the bias ledger sees what they do.

    one workload ─► cohort │ window │ greedy │ drop-stale ─► journal ─► bias ledger      beside it: the planned lengths

    cohort      batches of the oldest groups, whatever they take
    window      greedy inside the oldest third of what is pending
    greedy      the first to finish: the early batches are short, the long ones come late, and all come
    drop-stale  greedy, and what is older than `DROP_LAG` versions is dropped: the long ones never come

Law: the ledger reads the journal alone, where a cancelled trajectory has only the length that it had reached. Here the
lengths are known beforehand, so that the ledger is held against the truth: trained over all that was admitted, by the
length that was planned. A ledger that clears `drop-stale`, or accuses `cohort`, is of no use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from muster.engine.config import EmulatedEngineConfig
from muster.engine.timing import EngineTiming
from muster.lab.collection.collection import (
    CollectionWorld,
    FleetWorld,
    SandboxWorld,
    TrainingWorld,
    number_of,
    simulate,
)
from muster.lab.collection.workload import Lognormal, WorkloadConfig, group_programs
from muster.lab.result import BenchResult, Target
from muster.observe.bias import bias
from muster.observe.record import Record, read
from muster.orchestrator.config import SchedulerConfig

DROP_LAG = 3
"""Less than the lag of most groups here, as a bound is that was chosen without looking at lengths."""
_NEVER = 100
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "cohort": {"policy": "cohort", "max_lag": _NEVER},
    "window": {"policy": "window", "max_lag": _NEVER},
    "greedy": {"policy": "greedy", "max_lag": _NEVER},
    "drop-stale": {"policy": "greedy", "max_lag": DROP_LAG},
}
STEPS = 24
FIRST_BATCHES = 4
CLEAR = 0.02
"""A ratio of lengths this near to 1 is no bias."""
CAUGHT = 0.9
"""A ratio of lengths below this is one that nobody overlooks."""

WORKLOAD = WorkloadConfig(
    groups=8,
    group_size=4,
    turns=Lognormal(median=6, sigma=1.0, cap=40),
    reply_tokens=Lognormal(median=60, sigma=0.5, cap=600),
    prompt_tokens=Lognormal(median=64, cap=64),
    observation_tokens=Lognormal(median=10, cap=10),
    max_context_tokens=8000,
    tool_s=Lognormal(median=1.0, sigma=1.0, cap=30),
    verify_s=Lognormal(median=1.0),
)
"""A small terminal workload: many turns are what makes a trajectory long."""
LIVE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """One policy, one seed. Ratios of mean lengths: trained over dispatched; deciles are shortest first."""

    ratio: float
    true_ratio: float
    first_ratio: float  # of the first batches, by the ledger
    inclusion: tuple[float, ...]
    true_inclusion: tuple[float, ...]
    discarded: float  # share of the sampled tokens
    virtual_s: float


def run_selection_bench(
    say: Callable[[str], object], *, repetitions: int = 2, seed: int = 0, steps: int = STEPS
) -> BenchResult:
    """Every policy on the programs of `repetitions` seeds; means are shown."""
    rows: list[dict[str, str | int | float]] = []
    means: dict[str, Selected] = {}
    for name in POLICIES:
        means[name] = _mean([selected(name, seed + i, steps=steps) for i in range(repetitions)])
        rows.append(_row(name, means[name]))
        say(f"{name}: length ratio {means[name].ratio:.3f}, in truth {means[name].true_ratio:.3f}")
    cohort, stale = means["cohort"], means["drop-stale"]
    return BenchResult(
        name="selection",
        rows=rows,
        targets=[
            Target(name="cohort_ratio_off_by", value=abs(cohort.ratio - 1), operator="<=", threshold=CLEAR),
            Target(name="drop_stale_ratio", value=stale.ratio, operator="<=", threshold=CAUGHT),
            Target(
                name="drop_stale_longest_decile_over_next",
                value=stale.inclusion[-1] / min(stale.inclusion[:-1]),
                operator="<=",
                threshold=1.0,
            ),
            Target(
                name="ledger_error",
                value=max(abs(m.ratio - m.true_ratio) for m in means.values()),
                operator="<=",
                threshold=0.05,
            ),
        ],
        notes={
            "repetitions": repetitions,
            "seed": seed,
            "live": LIVE,
            "steps": steps,
            "drop_lag": DROP_LAG,
            "true_inclusion": {name: m.true_inclusion for name, m in means.items()},
        },
    )


def selected(policy: str, seed: int, *, steps: int = STEPS) -> Selected:
    """Live one policy, and read its ledger."""
    collected = simulate(world(policy, steps), seed)
    with collected.journal as journal:
        record = read(journal)
    ledger = bias(record)
    first = [c.ratio("mean_tokens") for c in ledger.batches[:FIRST_BATCHES]]
    true_ratio, true_inclusion = _truth(record, seed)
    return Selected(
        ratio=ledger.run.ratio("mean_tokens") or float("nan"),
        true_ratio=true_ratio,
        first_ratio=float(np.mean([r for r in first if r is not None])),
        inclusion=ledger.inclusion,
        true_inclusion=true_inclusion,
        discarded=ledger.discarded_tokens / ledger.sampled_tokens,
        virtual_s=collected.virtual_s,
    )


def world(policy: str, steps: int) -> CollectionWorld:
    """Slots are short, an engine is not, and the trainer is half as busy as the rollouts."""
    engine = EmulatedEngineConfig(
        timing=EngineTiming(step_s=0.02, prefill_s=1e-5),
        max_running=LIVE,
        max_step_tokens=8192,
        max_model_len=8192,
        kv_capacity_tokens=8192 * (LIVE + 1),
    )
    schedule = {"groups_per_batch": WORKLOAD.groups, "group_size": WORKLOAD.group_size, "slots": LIVE}
    return CollectionWorld(
        workload=WORKLOAD,
        fleet=FleetWorld(replicas=1, engine=engine),
        sandboxes=SandboxWorld(slots=2 * LIVE),
        schedule=SchedulerConfig.model_validate({**schedule, **POLICIES[policy]}),
        training=TrainingWorld(steps=steps, step_s=8.0),
    )


def _truth(record: Record, seed: int) -> tuple[float, tuple[float, ...]]:
    """Length ratio and inclusion by decile over every sibling of every group that was admitted."""
    trained = {
        (record.trajectories[m].group_id, record.trajectories[m].sibling) for b in record.trained for m in b.members
    }
    planned = sorted(
        (program.sampled_tokens, group.id, sibling)
        for group in record.groups.values()
        for sibling, program in enumerate(group_programs(WORKLOAD, seed, number_of(group.task_id)))
    )
    lengths_N = np.array([length for length, _, _ in planned])
    included_N = np.array([(group, sibling) in trained for _, group, sibling in planned])
    deciles = tuple(float(part.mean()) for part in np.array_split(included_N, 10))
    return float(lengths_N[included_N].mean() / lengths_N.mean()), deciles


def _mean(runs: Sequence[Selected]) -> Selected:
    def over_deciles(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        return tuple(np.mean(rows, axis=0).tolist())

    return Selected(
        ratio=float(np.mean([r.ratio for r in runs])),
        true_ratio=float(np.mean([r.true_ratio for r in runs])),
        first_ratio=float(np.mean([r.first_ratio for r in runs])),
        inclusion=over_deciles([r.inclusion for r in runs]),
        true_inclusion=over_deciles([r.true_inclusion for r in runs]),
        discarded=float(np.mean([r.discarded for r in runs])),
        virtual_s=float(np.mean([r.virtual_s for r in runs])),
    )


def _row(name: str, run: Selected) -> dict[str, str | int | float]:
    return {
        "policy": name,
        "length ratio": round(run.ratio, 3),
        "in truth": round(run.true_ratio, 3),
        f"first {FIRST_BATCHES}": round(run.first_ratio, 2),
        "discarded": f"{run.discarded:.0%}",
        "seconds": round(run.virtual_s),
        **{f"d{i + 1}": f"{share:.0%}" for i, share in enumerate(run.inclusion)},
        "d10 in truth": f"{run.true_inclusion[-1]:.0%}",
    }
