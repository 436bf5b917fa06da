"""Questions about batches: how long they take, how old their tokens are, and whether engine and trainer agree."""

from __future__ import annotations

from collections.abc import Mapping

from muster.observe import words
from muster.observe.freshness import weighted_mean
from muster.observe.palette import BOUND_NAMES, STAGE_COLOURS, name
from muster.observe.report import Report
from muster.observe.sections.section import LAST_BATCHES, Section, Table
from muster.types import Stage


def readiness(report: Report) -> Section:
    title = "1. How long until a batch is trainable?"
    if not report.batches:
        return Section(title=title, sentence="No batch has become ready yet.")
    ttb = [b.ttb_s for b in report.batches]
    wait = words.quantile([b.trainer_wait_s for b in report.batches], 0.5)
    felt = report.felt
    whole = sum(felt.values())
    top = max(felt, key=lambda s: felt[s], default=None)
    most = (
        f"most of that wait was {name(top)} ({words.percent(felt[top] / whole)})"
        if top and whole
        else "it never waited"
    )
    sentence = (
        f"A trainable batch took {words.seconds(words.quantile(ttb, 0.5))} (p50; p90 "
        f"{words.seconds(words.quantile(ttb, 0.9))}), for which the trainer waited {words.seconds(wait)} (p50); {most}."
    )
    return Section(title=title, sentence=sentence, tables=(_causes(report), _batches(report), _stragglers(report)))


def _causes(report: Report) -> Table:
    parts, felt, whole = report.parts, report.felt, report.ttb_s
    ordered = sorted((s for s in parts if parts[s] > 0), key=lambda s: -parts[s])
    return Table(
        title=f"TTB by cause, all {words.plural(len(report.batches), 'batch')}",
        columns=("cause", "seconds", "share", "while the trainer waited"),
        rows=tuple(
            (name(s), words.seconds(parts[s]), words.percent(parts[s] / whole), words.seconds(felt.get(s, 0.0)))
            for s in ordered
        ),
        shares=tuple(parts[s] / whole for s in ordered),
        colours=tuple(STAGE_COLOURS[s] for s in ordered),
        figure="causes",
    )


def _batches(report: Report) -> Table:
    rows: list[tuple[str, ...]] = []
    for batch in report.batches[-LAST_BATCHES:]:
        bounds = report.bounds.get(batch.step, {})
        active = max(bounds, key=lambda n: bounds[n], default=None)
        limit = bounds[active] if active else None
        largest = max(batch.parts, key=lambda s: batch.parts[s], default=None)
        rows.append(
            (
                str(batch.step),
                words.seconds(batch.ttb_s),
                words.seconds(batch.trainer_wait_s),
                name(largest) if largest else words.NOTHING,
                words.seconds(batch.collected_s),
                words.seconds(limit),
                words.ratio(batch.collected_s / limit if limit else None),
                BOUND_NAMES.get(active, active) if active else words.NOTHING,
            )
        )
    known = {n for b in report.bounds.values() for n in b}
    missing = ", ".join(label for n, label in BOUND_NAMES.items() if n not in known and n != "joint")
    unknown = f" (unknown: {missing})" if missing else ""
    note = f"; no schedule could beat the bound, at the rates and times of this run{unknown}" if known else ""
    shown = f"Last {len(rows)} batches" if len(report.batches) > LAST_BATCHES else "Batches"
    columns = ("step", "TTB", "trainer waited", "largest part", "collected in", "bound", "over it", "held by")
    return Table(title=shown + note, columns=columns, rows=tuple(rows))


def _stragglers(report: Report) -> Table:
    rows = [
        (
            s.id,
            s.task_id,
            words.seconds(s.duration_s),
            s.verdict,
            str(s.turns),
            words.number(s.sampled_tokens),
            _largest(s.parts, s.duration_s),
        )
        for s in report.stragglers
    ]
    columns = ("trajectory", "task", "took", "verdict", "turns", "tokens", "spent on")
    return Table(title="Slowest trajectories", columns=columns, rows=tuple(rows))


def _largest(parts: Mapping[Stage, float], whole_s: float, count: int = 2) -> str:
    ordered = sorted(parts.items(), key=lambda p: -p[1])[:count]
    return ", ".join(f"{name(s)} {100 * x / whole_s:.0f} %" for s, x in ordered if x > 0)


def freshness(report: Report) -> Section:
    title = "2. How fresh is what is trained?"
    batches = report.freshness
    if not batches:
        return Section(title=title, sentence="Nothing has been trained yet.")
    lag = _mean(report, "lag_mean")
    oldest = max(f.lag_max for f in batches)
    farthest = max((f.distance for f in batches if f.distance is not None), default=None)
    age = (
        "Every trained token came from the policy that was trained"
        if oldest <= 0
        else f"Trained tokens were {words.number(lag)} versions old on average, {oldest} at most"
        + (f" ({words.number(farthest)} nats away, summed over the steps between)" if farthest is not None else "")
    )
    reused = sum(f.reused for f in batches)
    again = f" Earlier successes were trained once more: {reused}." if reused else ""
    return Section(
        title=title,
        sentence=f"{age}; {_refused(report)}.{again}{_in_seconds(report)}",
        tables=(_ages(report), _divergences(report)),
    )


def _in_seconds(report: Report) -> str:
    """Sentence on the age of the policy, mean over the steps that measured it."""
    sampled, trained = ([v for _, v in report.series.get(n, ())] for n in ("sampled_age_s", "trained_age_s"))
    if not sampled or not trained:
        return ""
    ages = (words.seconds(sum(values) / len(values)) for values in (sampled, trained))
    return " On average weights were {} old when they sampled a token, and {} when it was trained.".format(*ages)


def _refused(report: Report) -> str:
    """Sentence on what was dropped for its age, by reason."""
    dropped = report.groups.dropped
    stale, diverged = dropped.get("too_stale", 0), dropped.get("diverged", 0)
    text = f"{words.plural(stale, 'group')} dropped as too stale"
    return f"{text}, {diverged} as too far from the trainer" if diverged else text


def _ages(report: Report) -> Table:
    batches = report.freshness[-LAST_BATCHES:]
    columns = ("step", "tokens", "lag mean", "lag max", "distance")
    reusing = any(f.reused for f in report.freshness)
    partly = " (*: in part assumed, a step was not measured)" if any(f.assumed for f in batches) else ""
    return Table(
        title="Lag in versions; distance of the oldest token from the trainer in nats, summed over the steps between"
        + partly,
        columns=(*columns, "reused", "their distance") if reusing else columns,
        rows=tuple(
            (
                str(f.step),
                words.number(f.tokens),
                f"{f.lag_mean:.2f}",
                str(f.lag_max),
                words.number(f.distance) + ("*" if f.assumed and f.distance is not None else ""),
                *((str(f.reused), words.number(f.reused_distance)) if reusing else ()),
            )
            for f in batches
        ),
    )


def _divergences(report: Report) -> Table:
    return Table(
        title="Divergence of trained tokens from the policy that sampled them, measured at the step: root-mean-square "
        "log-ratio (rms) and KL estimate (k3) in nats, effective sample size as a share of the tokens",
        columns=("step", "rms", "k3", "k3, worst trajectory", "effective", "clipped", "masked"),
        rows=tuple(
            (
                str(f.step),
                words.number(f.rms),
                words.number(f.k3),
                words.number(f.worst_k3),
                words.percent(f.ess),
                words.percent(f.clip_fraction),
                words.percent(f.dropped_fraction),
            )
            for f in report.freshness[-LAST_BATCHES:]
        ),
    )


def numerics(report: Report) -> Section:
    title = "3. Do engine and trainer compute the same numbers?"
    correction = _correction(report)
    everywhere = _mean(report, "difference")
    if everywhere is None:
        return Section(title=title, sentence=f"No step has been measured yet; correction in force: {correction}.")
    fresh = _mean(report, "fresh_difference")
    difference, meaning = (
        (everywhere, "of all versions") if fresh is None else (fresh, "of the version that was trained: numerics alone")
    )
    sentence = (
        f"Trainer and engine differ by {words.number(difference)} nats per token, over tokens {meaning}; "
        f"correction in force: {correction}."
    )
    largest = max((f.largest_ratio for f in report.freshness if f.largest_ratio is not None), default=None)
    canaries = [p.canary_difference for p in report.publications if p.canary_difference is not None]

    def row(label: str, *fields: str) -> tuple[str, ...]:
        return (label, *(words.number(_mean(report, f)) for f in fields))

    canary = words.number(max(canaries, default=None))
    table = Table(
        title="Trainer against engine, per trained token; fresh: of the version that was trained, so numerics alone; "
        "stale: of older ones",
        columns=("measure", "all", "fresh", "stale"),
        rows=(
            row("mean |log-probability difference|, nats", "difference", "fresh_difference", "stale_difference"),
            row("KL estimate (k3), nats", "k3", "fresh_k3", "stale_k3"),
            ("effective sample size", words.percent(_mean(report, "ess")), "", ""),
            ("largest ratio of probabilities", words.number(largest), "", ""),
            ("fixed tokens after a publication, largest |difference|, nats", "", canary, ""),
        ),
    )
    return Section(title=title, sentence=sentence, tables=(table,))


def _mean(report: Report, field: str) -> float | None:
    """Mean over batches, weighted by their tokens."""
    batches = report.freshness
    return weighted_mean([getattr(f, field) for f in batches], [f.tokens for f in batches])


def _correction(report: Report) -> str:
    correction = report.correction
    if isinstance(correction, str):
        return correction
    if not correction:
        return "not recorded"
    rest = ", ".join(f"{k} {v}" for k, v in correction.items() if k != "kind" and v is not None)
    kind = str(correction.get("kind", "unnamed"))
    return f"{kind} ({rest})" if rest else kind
