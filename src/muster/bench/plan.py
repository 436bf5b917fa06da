"""`muster plan`: what one change would buy a run, simulated on the run's own work; and how many sandboxes it needs.

    RUN ─► journal ─► Fitted ─► World ─┬─ the run itself, simulated ─► the error of the reproduction
                                       ├─ one change at a time ──────► gain, interval ─► one recommendation, or none
    --workload FILE ─────────► World ──┘  fewer and fewer slots ─────► sandboxes per accelerator
    RUN --set key=value --against RUN2 ─► predicted beside measured TTB

Law: the journal and the configuration go in, nothing of the run is changed. A plan whose reproduction is off says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.bench.plan_draws import Draws, Work, drawing
from muster.bench.plan_words import planned, predicted
from muster.bench.result import BenchResult
from muster.bench.plan_worlds import Base, base_of, declared
from muster.errors import UserError
from muster.journal import Journal
from muster.reporting import JOURNAL
from muster.sim.fit_world import measured
from muster.sim.planner import (
    Change,
    Comparison,
    Outcome,
    Reproduction,
    changes,
    median,
    recommend,
    slots_needed,
    unlimited,
    with_slots,
)

SLOT_DRAWS = 2
"""Draws for each number of slots that is tried: the answer is a size, not a gain."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What to plan. `what`: changes of the user's own, each alone, in the place of the usual ones. `settings`: all
    together one configuration, whose TTB is predicted, and compared with that of the run in `against`.

    Example: `PlanOptions(run=Path("runs/a"), what=("schedule.slots=128",), seeds=5)`
    """

    run: Path | None = None
    workload: Path | None = None
    engine: str | None = None
    what: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    against: Path | None = None
    seeds: int = 5
    jobs: int = 0


def plan(options: PlanOptions, say: Say) -> BenchResult:
    """Simulate and compare. `say` gets progress and the recommendation. Raises `UserError`."""
    base = _base(options)
    for note in base.notes:
        say(f"note: {note}")
    with drawing(Work(groups=base.groups, skipped=base.skipped), jobs=options.jobs) as draws:
        if options.settings or options.against:
            return _prediction(base, options, draws, say)
        return _plan(base, options, draws, say)


def _base(options: PlanOptions) -> Base:
    if (options.run is None) == (options.workload is None):
        raise UserError("name the directory of a run, or a declared world with --workload")
    if options.workload is not None:
        if options.engine or options.settings or options.against:
            raise UserError("--engine, --set and --against are about a run; a declared world says all itself")
        return declared(options.workload)
    assert options.run is not None, "one of the two is named"
    with Journal.open(options.run / JOURNAL) as journal:
        return base_of(journal, source=str(options.run), engine=options.engine)


def _plan(base: Base, options: PlanOptions, draws: Draws, say: Say) -> BenchResult:
    reproduction, before = _reproduced(base, options.seeds, draws)
    if reproduction:
        say(
            f"the run itself, simulated: TTB p50 {reproduction.simulated_s:.4g} s, measured "
            f"{reproduction.measured_s:.4g} s ({reproduction.error:+.1%})"
        )
    tried = [base.changed([key], name=key) for key in options.what] or changes(base.world)
    comparisons = _compared(tried, before, options.seeds, draws, say)
    recommendation = recommend(comparisons, reproduction)
    slots = None if options.what else _slots(base, draws, say)
    result = planned(base, before, comparisons, reproduction, recommendation, slots)
    say(result.notes["recommendation"])
    return result


def _reproduced(base: Base, seeds: int, draws: Draws) -> tuple[Reproduction | None, tuple[Outcome, ...]]:
    """The run as it was: draw 0 is its own groups in its own order."""
    before = _finished(draws.outcomes(base.world, seeds))
    if base.measured is None:
        return None, before
    return Reproduction(measured_s=base.measured.ttb_p50_s, simulated_s=before[0].ttb_p50_s), before


def _compared(
    tried: Sequence[Change], before: tuple[Outcome, ...], seeds: int, draws: Draws, say: Say
) -> list[Comparison]:
    comparisons: list[Comparison] = []
    for number, (change, after) in enumerate(
        zip(tried, draws.each([c.world for c in tried], seeds), strict=True), start=1
    ):
        progress = f"{number} of {len(tried)}: {change.name}"
        if isinstance(after, str):
            say(f"{progress}: does not run: {after}")
            continue
        comparisons.append(Comparison(change=change, before=before, after=after))
        say(f"{progress}: {-comparisons[-1].gain:+.1%} of the TTB")
    return comparisons


def _slots(base: Base, draws: Draws, say: Say) -> tuple[int, dict[int, float]]:
    """Answer "how many sandboxes per accelerator"."""
    say("how many sandboxes")

    def ttb_s(slots: int) -> float:
        outcomes = _finished(draws.outcomes(with_slots(base.world, slots), SLOT_DRAWS))
        return median(outcomes, lambda o: o.ttb_mean_s)

    most = unlimited(base.world)
    return slots_needed(ttb_s, least=min(most, base.world.schedule.group_size), most=most)


def _prediction(base: Base, options: PlanOptions, draws: Draws, say: Say) -> BenchResult:
    """One changed configuration, beside the run that was made with it."""
    reproduction, _ = _reproduced(base, 1, draws)
    if options.against is None:
        change = base.changed(options.settings, name=" ".join(options.settings))
        after = _finished(draws.outcomes(change.world, options.seeds))
        return predicted(base, change, after, reproduction, None)
    with Journal.open(options.against / JOURNAL) as journal:
        seen = measured(journal)
    change = base.changed(options.settings, name=" ".join(options.settings), batches=len(seen.ttb_s) + base.skipped)
    say(f"simulating {change.name}, and comparing it with {options.against}")
    after = _finished(draws.outcomes(change.world, options.seeds))
    return predicted(base, change, after, reproduction, seen)


def _finished(outcomes: tuple[Outcome, ...] | str) -> tuple[Outcome, ...]:
    if isinstance(outcomes, str):
        raise UserError(f"the simulated run stopped: {outcomes}")
    return outcomes
