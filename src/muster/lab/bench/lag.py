"""`muster bench lag`: the lag that a closed form predicts, beside the lag of the simulator.

    settings ─► world (constant decode rate, no tools) ─► real scheduler and loops ─► lag of each trained group

**What is predicted.** Batch `k` is trained by version `k`, so the lag of a group is `k` minus the version of its oldest
token, averaged over the groups of the batches after the start and before the last admission. The formula's terms here:

    C       live trajectories: the slots, which are always full
    B       trajectories of a batch
    M_tail  from the first sibling's start to the last one's end, over the mean length l: E[max_i(i·l/C + L_i)] / l,
            since slots come free one at a time, every l/C
    rho     rollout rate over train rate: (C/l) · t / B, where a step and its publication take t
    q       complete groups that wait when a step starts, those of its own batch included, in batches

**rho < 1**: the trainer waits. Batches form every T = B·l/C; version k serves t = rho·T after batch k - 1 was ready. A
group is complete T/2 before its batch is, on average, and began M_tail·l earlier. The number of versions that serve at
an instant is the floor of a line, half below it on average. The two halves cancel:

    lag = C·M_tail/B + rho

**rho > 1**: the trainer is always busy, T = t. Groups form rho times as fast, so that those of a step were complete
(q - 1/2)/rho steps before; versions again are half a step below the line:

    lag = C·M_tail/(rho·B) + (q - 1/2)/rho + 1/2  =  C·M_tail/(rho·B) + (2q + rho - 1)/(2·rho)

Its authors' queue has a fixed room and drops the oldest; ours grows until `max_lag` stops admission. The form holds at
each step with the `q` of that step, so `max_lag` is out of reach here: with it in force, lag is bounded by it.

**The mean token** is younger. A sibling that starts at s_i in its group samples its tokens evenly over L_i, and long
ones hold more of the tokens, so that with D the duration of the group, C·M_tail/B becomes (C/B) · m with

    m = Σ L_i · (D - s_i - L_i/2) / (l · Σ L_i)        sums over all trajectories

Policy `greedy`: batches take groups as they come, as the formulas assume; with `fifo` a batch also waits for the
oldest. Source: a published study of asynchronous training, which found its own runs within 0.27 steps of both forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from muster.engine.config import EmulatedEngineConfig
from muster.engine.timing import EngineTiming
from muster.journal import BatchRow, GroupRow, Journal, StepRow, TrajectoryRow
from muster.lab.collection.collection import CollectionWorld, FleetWorld, SandboxWorld, TrainingWorld, simulate
from muster.lab.collection.workload import Lognormal, Program, WorkloadConfig, group_programs
from muster.lab.result import BenchResult, Target
from muster.observe.freshness import batch_freshness
from muster.orchestrator.config import SchedulerConfig
from muster.orchestrator.decisions.drift import Odometer
from muster.types.arrays import Floats

TOKEN_S = 0.2
"""Seconds a token, whatever else is decoded: so that a trajectory's time is its length."""
STEPS = 48
CLOSE_ENOUGH = 0.5
_UNBOUNDED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One point of the grid. `sigma`: of the logarithm of lengths; `rho`: rollout rate over train rate."""

    live: int
    groups: int = 8
    group_size: int = 4
    sigma: float = 0.5
    rho: float

    @property
    def batch(self) -> int:
        """Trajectories."""
        return self.groups * self.group_size


GRID = (
    *(Setting(live=live, rho=rho) for live in (32, 64, 128) for rho in (0.3, 0.6, 0.9)),
    *(Setting(live=64, rho=rho, sigma=1.0) for rho in (0.3, 0.8)),
    Setting(live=96, groups=16, group_size=4, rho=0.7),
    Setting(live=96, groups=8, group_size=8, rho=0.7),
    *(Setting(live=live, rho=rho) for live in (32, 64) for rho in (1.1, 1.5, 2.0)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Versions, averaged over the batches of the steady part. `queue`: q of the formula, measured."""

    setting: Setting
    tail: float
    queue: float
    predicted: float
    simulated: float
    predicted_mean_token: float
    simulated_mean_token: float
    batches: int

    @property
    def error(self) -> float:
        """The larger of the two."""
        mean_token = abs(self.simulated_mean_token - self.predicted_mean_token)
        return max(abs(self.simulated - self.predicted), mean_token)


def run_lag_bench(say: Callable[[str], object], *, grid: Sequence[Setting] = GRID, seed: int = 0) -> BenchResult:
    """Simulate every setting of the grid; a second or two each."""
    lags: list[Lag] = []
    for setting in grid:
        lags.append(measured(setting, seed))
        say(f"{len(lags)} of {len(grid)}: live {setting.live}, rho {setting.rho:g}, error {lags[-1].error:.2f}")
    return BenchResult(
        name="lag",
        rows=[_row(lag) for lag in lags],
        targets=[
            Target(name="lag_max_error", value=max(x.error for x in lags), operator="<=", threshold=CLOSE_ENOUGH),
            Target(name="lag_settings", value=len(lags), operator=">=", threshold=12),
        ],
        notes={"policy": "greedy", "steps": STEPS, "seed": seed, "unit": "versions"},
    )


def measured(setting: Setting, seed: int, *, steps: int = STEPS) -> Lag:
    """Predict one setting from its programs, and simulate it."""
    workload = _workload(setting)
    programs = [group_programs(workload, seed, n) for n in range(setting.groups * steps)]
    lengths_NG = np.array([[_length_s(p) for p in group] for group in programs])
    collected = simulate(_world(setting, workload, float(lengths_NG.mean()), steps), seed, groups=programs)
    with collected.journal as journal:
        seen = _steady(journal, setting, lengths_NG)
    queue = float(np.mean([s.queue for s in seen]))
    oldest, mean_token = predicted(setting, lengths_NG, queue)
    return Lag(
        setting=setting,
        tail=tail_of(setting, lengths_NG),
        queue=queue,
        predicted=oldest,
        simulated=float(np.mean([s.oldest for s in seen])),
        predicted_mean_token=mean_token,
        simulated_mean_token=float(np.mean([s.mean_token for s in seen])),
        batches=len(seen),
    )


def predicted(setting: Setting, lengths_NG: Floats, queue: float) -> tuple[float, float]:
    """Lag of the oldest token of a group, and of the mean token, in versions; see the module."""
    rho = setting.rho
    flight = setting.live / setting.batch / max(1.0, rho)  # mean length, in steps
    waits = rho if rho < 1 else (2 * queue + rho - 1) / (2 * rho)
    starts_G = _starts(setting, lengths_NG)
    duration_N1 = (lengths_NG + starts_G).max(axis=1, keepdims=True)
    age_NG = duration_N1 - starts_G - lengths_NG / 2  # of its mean token, when the group is complete
    mean_token = float((lengths_NG * age_NG).sum() / lengths_NG.sum() / lengths_NG.mean())
    return flight * tail_of(setting, lengths_NG) + waits, flight * mean_token + waits


def tail_of(setting: Setting, lengths_NG: Floats) -> float:
    """M_tail: time of a group over the mean length of a trajectory, siblings starting as slots come free."""
    durations_N = (lengths_NG + _starts(setting, lengths_NG)).max(axis=1)
    return float(durations_N.mean() / lengths_NG.mean())


def _starts(setting: Setting, lengths_NG: Floats) -> Floats:
    """Start of each sibling after the first: a slot comes free every l/C."""
    return np.arange(setting.group_size) * lengths_NG.mean() / setting.live


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """Measurements of one batch."""

    oldest: float
    mean_token: float
    queue: float


def _steady(journal: Journal, setting: Setting, lengths_NG: Floats) -> list[_Seen]:
    """Batches after the first groups had the time to be trained three times over, and before admission ended."""
    groups = {g.id: g for g in journal.rows(GroupRow)}
    rows = journal.rows(TrajectoryRow)
    trajectories = {t.id: t for t in rows}
    ready = np.sort([g.ready_at for g in groups.values() if g.ready_at is not None])
    admitted_last = max(g.admitted_at for g in groups.values())
    settled = 2 * setting.live * tail_of(setting, lengths_NG) / setting.batch
    seen: list[_Seen] = []
    for batch, step in zip(journal.rows(BatchRow), journal.rows(StepRow), strict=True):
        if batch.step < settled or step.started > admitted_last:
            continue
        by_group: dict[str, int] = {}
        for member in (trajectories[m] for m in batch.members):
            assert member.oldest_version is not None, "every program samples"
            by_group[member.group_id] = min(member.oldest_version, by_group.get(member.group_id, batch.step))
        complete = int(np.searchsorted(ready, step.started, side="right"))
        seen.append(
            _Seen(
                oldest=batch.step - float(np.mean(list(by_group.values()))),
                mean_token=batch_freshness(batch, trajectories, None, Odometer()).lag_mean,
                queue=complete / setting.groups - batch.step,
            )
        )
    return seen


def _length_s(program: Program) -> float:
    return program.sampled_tokens * TOKEN_S


def _workload(setting: Setting) -> WorkloadConfig:
    """One reply, and nothing else that takes time."""
    return WorkloadConfig(
        groups=setting.groups,
        group_size=setting.group_size,
        turns=Lognormal(median=1, cap=1),
        reply_tokens=Lognormal(median=300, sigma=setting.sigma, cap=6000),
        prompt_tokens=Lognormal(median=64, cap=64),
        observation_tokens=Lognormal(median=1, cap=1),
        max_context_tokens=7000,
        tool_s=Lognormal(median=0),
        verify_s=Lognormal(median=0),
    )


def _world(setting: Setting, workload: WorkloadConfig, length_s: float, steps: int) -> CollectionWorld:
    engine = EmulatedEngineConfig(
        timing=EngineTiming(step_s=TOKEN_S, prefill_s=1e-9),
        max_running=setting.live,
        max_step_tokens=64 * setting.live,
        max_model_len=8000,
        kv_capacity_tokens=8000 * (setting.live + 1),
        stage_s=0,
        commit_s=0,
    )
    return CollectionWorld(
        workload=workload,
        fleet=FleetWorld(replicas=1, engine=engine),
        sandboxes=SandboxWorld(slots=2 * setting.live, verify="in_place"),
        schedule=SchedulerConfig(
            groups_per_batch=setting.groups,
            group_size=setting.group_size,
            slots=setting.live,
            max_lag=_UNBOUNDED,
            policy="greedy",
        ),
        training=TrainingWorld(
            steps=steps,
            step_s=setting.rho * setting.batch * length_s / setting.live,
            export_s=0,
            watch_interval_s=1000.0,
        ),
    )


def _row(lag: Lag) -> dict[str, str | int | float]:
    s = lag.setting
    return {
        "live": s.live,
        "batch": f"{s.groups}x{s.group_size}",
        "sigma": s.sigma,
        "rho": s.rho,
        "M_tail": lag.tail,
        "q": lag.queue,
        "predicted": lag.predicted,
        "simulated": lag.simulated,
        "mean token": lag.predicted_mean_token,
        "simulated ": lag.simulated_mean_token,
        "error": lag.error,
        "batches": lag.batches,
    }
