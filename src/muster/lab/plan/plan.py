"""`muster plan`: what one change would buy a run, simulated on the run's own work; and how many sandboxes it needs.

    RUN ─► journal ─► Fitted ─► World ─┬─ the run itself, simulated ─► the error of the reproduction
                                       ├─ one change at a time ──────► gain, interval ─► one recommendation, or none
    --workload FILE ─────────► World ──┘  fewer and fewer slots ─────► sandboxes per accelerator
    RUN --against RUN2 ──────► the world under RUN2's configuration ─► predicted beside measured TTB

Law: the journal and the configuration go in, nothing of the run is changed. A plan whose reproduction is off says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.errors import UserError
from muster.journal import FILE_NAME, Journal
from muster.lab.plan.changes import Change, changes, unlimited, with_slots
from muster.lab.plan.draws import Draws, DrawWork, drawing
from muster.lab.plan.fit.run import measured
from muster.lab.plan.fit.world import MeasuredBatches
from muster.lab.plan.planner import WORTH, Comparison, Outcome, SimulatedRun, median, recommend, slots_needed
from muster.lab.plan.words import Slots, planned, predicted, sandboxes_sentence
from muster.lab.plan.worlds import Base, base_of, config_of, declared
from muster.lab.result import BenchResult

PROMISING = WORTH / 2
"""Share of the TTB that a change must gain in the run's own order, to be tried on other draws."""
SLOT_DRAWS = 2
"""Draws for each number of slots that is tried: the answer is a size, not a gain."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Options of a plan. `what`: changes of the user's own, each alone, in the place of the usual ones. `settings`: all
    together one configuration, whose TTB is predicted. `against`: a run whose TTB is predicted from its configuration,
    and compared with what it took.

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
    with drawing(DrawWork(groups=base.groups, alone=base.alone), jobs=options.jobs) as draws:
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
    with Journal.open(options.run / FILE_NAME) as journal:
        return base_of(journal, source=str(options.run), engine=options.engine)


def _plan(base: Base, options: PlanOptions, draws: Draws, say: Say) -> BenchResult:
    reproduction = _reproduced(base, draws, say)
    before = _finished(draws.outcomes(base.world, range(options.seeds), skipped=base.skipped))
    tried = [base.changed([key]) for key in options.what] or changes(base.world)
    comparisons = _compared(base, tried, before, draws, say, screen=not options.what)
    recommendation = recommend(comparisons, reproduction)
    slots = None if options.what else _slots(base, draws, say)
    result = planned(base, before, comparisons, reproduction, recommendation, slots)
    say(result.notes["recommendation"])
    if slots:
        say(sandboxes_sentence(base, slots))
    return result


def _reproduced(base: Base, draws: Draws, say: Say) -> SimulatedRun | None:
    """The run as it was: draw 0 is its own groups in its own order. None for a declared world."""
    world = base.reproduction()
    if world is None or base.measured is None:
        return None
    (itself,) = _finished(draws.outcomes(world, [0], skipped=base.measured.skipped))
    found = SimulatedRun(measured_s=base.measured.ttb_p50_s, simulated_s=itself.ttb_p50_s)
    say(
        f"the run itself, simulated: TTB p50 {found.simulated_s:.4g} s, measured {found.measured_s:.4g} s "
        f"({found.error:+.1%})"
    )
    return found


def _compared(
    base: Base, tried: Sequence[Change], before: tuple[Outcome, ...], draws: Draws, say: Say, *, screen: bool
) -> list[Comparison]:
    """With `screen`, what gains next to nothing in the run's own order is not drawn again."""
    first = [0] if screen else range(len(before))
    comparisons: list[Comparison] = []
    afters = draws.each([c.world for c in tried], first, skipped=base.skipped)
    for number, (change, after) in enumerate(zip(tried, afters, strict=True), start=1):
        progress = f"{number} of {len(tried)}: {change.name}"
        if isinstance(after, str):
            say(f"{progress}: does not run: {after}")
            continue
        comparisons.append(Comparison(change=change, before=before[: len(after)], after=after))
        say(f"{progress}: {-comparisons[-1].gain:+.1%} of the TTB")
    return [_drawn_again(base, c, before, draws, say) if screen else c for c in comparisons]


def _drawn_again(base: Base, comparison: Comparison, before: tuple[Outcome, ...], draws: Draws, say: Say) -> Comparison:
    if comparison.gain < PROMISING or len(before) == 1:
        return comparison
    change = comparison.change
    more = draws.outcomes(change.world, range(1, len(before)), skipped=base.skipped)
    if isinstance(more, str):
        say(f"{change.name}: does not always run: {more}")
        return comparison
    drawn = Comparison(change=change, before=before, after=(*comparison.after, *more))
    say(f"{change.name}, {len(before)} draws: {-drawn.gain:+.1%} of the TTB")
    return drawn


def _slots(base: Base, draws: Draws, say: Say) -> Slots:
    """Answer "how many sandboxes per accelerator"."""
    say("how many sandboxes")

    def ttb_s(slots: int) -> float:
        outcomes = _finished(draws.outcomes(with_slots(base.world, slots), range(SLOT_DRAWS), skipped=base.skipped))
        return median(outcomes, lambda o: o.ttb_mean_s)

    most = unlimited(base.world)
    return slots_needed(ttb_s, least=min(most, base.world.schedule.group_size), most=most)


def _prediction(base: Base, options: PlanOptions, draws: Draws, say: Say) -> BenchResult:
    """One changed configuration, beside the run that was made with it."""
    reproduction = _reproduced(base, draws, say)
    assert base.measured is not None, "only a run is compared with another"
    seen: MeasuredBatches | None = None
    if options.against is None:
        like = base.measured
        change = base.changed(options.settings, batches=like.batches)
    else:
        with Journal.open(options.against / FILE_NAME) as journal:
            like = seen = measured(journal)
            other = config_of(journal, source=str(options.against))
        change = base.like(other, name=options.against.name, batches=like.batches)
        if options.settings and change.world != base.changed(options.settings, batches=like.batches).world:
            raise UserError(f"{options.against}: was not made with --set {' --set '.join(options.settings)} alone")
    after = _finished(draws.outcomes(change.world, range(options.seeds), skipped=like.skipped))
    return predicted(base, change, after, reproduction, seen)


def _finished(outcomes: tuple[Outcome, ...] | str) -> tuple[Outcome, ...]:
    if isinstance(outcomes, str):
        raise UserError(f"the simulated run stopped: {outcomes}")
    return outcomes
