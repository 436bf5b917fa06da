"""A plan in words and figures: rows of a table, targets, and the sentence that recommends one change, or none."""

from __future__ import annotations

from collections.abc import Sequence

from muster.engine.config import EmulatedEngineConfig
from muster.lab.plan.changes import Change
from muster.lab.plan.fit.world import MeasuredBatches
from muster.lab.plan.planner import WITHIN, Comparison, Outcome, Recommendation, SimulatedRun, devices, median
from muster.lab.plan.worlds import Base
from muster.lab.result import BenchResult, Target, Value

ERROR = 0.2
"""Share by which a prediction may be wrong."""

Slots = tuple[int, dict[int, float]]


def planned(
    base: Base,
    before: Sequence[Outcome],
    comparisons: Sequence[Comparison],
    reproduction: SimulatedRun | None,
    recommendation: Recommendation,
    slots: Slots | None,
) -> BenchResult:
    """All changes, largest gain first, beside the run as it is."""
    ordered = sorted(comparisons, key=lambda c: -c.gain)
    targets = [_target("reproduction_error", reproduction.error)] if reproduction else []
    return BenchResult(
        name="plan",
        rows=[_row("as it is", before), *(_row(c.change.name, c.after, c) for c in ordered)],
        targets=targets,
        notes={
            "source": base.source,
            "recommendation": sentence(recommendation, before),
            "recommended": recommendation.comparison.change.name if recommendation.comparison else None,
            "uncertainty": recommendation.uncertainty,
            "reproduction_error": reproduction.error if reproduction else None,
            "fit": _fit(base),
            "sandboxes": _sandboxes(base, slots) if slots else None,
            "notes": list(base.notes),
        },
    )


def predicted(
    base: Base,
    change: Change,
    after: Sequence[Outcome],
    reproduction: SimulatedRun | None,
    seen: MeasuredBatches | None,
) -> BenchResult:
    """One changed configuration: predicted, and measured where it was run."""
    p50_s = median(after, lambda o: o.ttb_p50_s)
    row: dict[str, Value] = {
        "change": change.name,
        "predicted TTB p50 s": p50_s,
        "lowest s": min(o.ttb_p50_s for o in after),
        "highest s": max(o.ttb_p50_s for o in after),
        "predicted wait s": median(after, lambda o: o.trainer_wait_s),
    }
    targets: list[Target] = []
    if base.measured:
        row["run's TTB p50 s"] = base.measured.ttb_p50_s
    if seen:
        row["measured TTB p50 s"] = seen.ttb_p50_s
        row["measured wait s"] = seen.trainer_wait_mean_s
        targets = [_target("prediction_error", p50_s / seen.ttb_p50_s - 1)]
    notes = {
        "source": base.source,
        "fit": _fit(base),
        "reproduction_error": reproduction.error if reproduction else None,
        "error": p50_s / seen.ttb_p50_s - 1 if seen else None,
    }
    return BenchResult(name="plan", rows=[row], targets=targets, notes=notes)


def sentence(recommendation: Recommendation, before: Sequence[Outcome]) -> str:
    """Sentence on what to do, what it gains, and how sure that is."""
    chosen, nearest = recommendation.comparison, recommendation.nearest
    unsure = f"uncertain by {recommendation.uncertainty:.0%}"
    if chosen is None:
        if nearest is None or nearest.gain <= 0:
            return "recommended: nothing. No change that was tried makes batches come sooner."
        return (
            f"recommended: nothing. What comes nearest, {nearest.change.name}, gains {nearest.gain:.0%} of the TTB, "
            f"{unsure}."
        )
    low, high = chosen.interval
    ttb_s = median(before, lambda o: o.ttb_mean_s), median(chosen.after, lambda o: o.ttb_mean_s)
    hours = median(before, lambda o: o.device_s) / 3600, chosen.device_s / 3600
    return (
        f"recommended: {chosen.change.says}. It saves {chosen.gain:.0%} of the TTB ({low:.0%} to {high:.0%}; "
        f"{unsure}): {ttb_s[0]:.4g} to {ttb_s[1]:.4g} s a batch, {hours[0]:.3g} to {hours[1]:.3g} device-hours."
    )


def sandboxes_sentence(base: Base, slots: Slots) -> str:
    """Sentence on how many sandboxes an accelerator needs, and what fewer would cost."""
    fewest, tried = slots
    engines = devices(base.world) - 1
    costs = ", ".join(f"{number} {seconds:.4g} s" for number, seconds in tried.items())
    each = f", {fewest / engines:.3g} for each of {engines} engine devices" if engines > 1 else ""
    return (
        f"sandboxes: {fewest} at once{each} are within {WITHIN:.0%} of the fastest (configured "
        f"{base.world.sandboxes.slots}). Mean TTB by number: {costs}"
    )


def _row(name: str, outcomes: Sequence[Outcome], comparison: Comparison | None = None) -> dict[str, Value]:
    drawn = comparison is not None and len(comparison.after) > 1
    low, high = comparison.interval if comparison else (0.0, 0.0)
    return {
        "change": name,
        "TTB p50 s": median(outcomes, lambda o: o.ttb_p50_s),
        "mean s": median(outcomes, lambda o: o.ttb_mean_s),
        "gain": f"{comparison.gain:+.1%}" if comparison else "",
        "interval": f"{low:+.1%} to {high:+.1%}" if drawn else "",
        "trainer waits s": median(outcomes, lambda o: o.trainer_wait_s),
        "device-hours": median(outcomes, lambda o: o.device_s) / 3600,
        "length": f"{comparison.length_ratio:.2f}{' biased' if comparison.biased else ''}" if comparison else "1.00",
    }


def _target(name: str, error: float) -> Target:
    return Target(name=name, value=abs(error), operator="<=", threshold=ERROR)


def _sandboxes(base: Base, slots: Slots) -> dict[str, object]:
    fewest, tried = slots
    accelerators = devices(base.world) - 1
    return {
        "fewest": fewest,
        "per_accelerator": fewest / accelerators,
        "accelerators": accelerators,
        "configured": base.world.sandboxes.slots,
        "ttb_mean_s": {str(n): s for n, s in tried.items()},
    }


def _fit(base: Base) -> dict[str, object] | None:
    """Figures of the fit, read from the journal, for a reader who wants to judge it."""
    if base.fitted is None:
        return None
    engine, training = base.fitted.engine, base.fitted.training
    named = isinstance(engine, EmulatedEngineConfig)
    return {
        "groups": len(base.fitted.groups),
        "batches": len(base.fitted.measured.ttb_s),
        "engine": engine.timing.model_dump(),
        "engine_error": None if named else engine.error,
        "step_s": training.step_s,
        "token_s": training.token_s,
        "export_s": training.export_s,
        "evaluate_s": training.evaluate_s,
        "checkpoint_s": training.checkpoint_s,
        "boot_p50_s": base.fitted.times.boot_s.median,
        "boot_sigma": base.fitted.times.boot_s.sigma,
        "stage_s": base.fitted.stage_s,
        "pause_s": base.fitted.pause_s,
        "infrastructure_loss": base.fitted.mishaps.rate,
    }
