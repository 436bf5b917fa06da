"""Questions about batches: how long they take, how old their tokens are, and whether engine and trainer agree."""

from __future__ import annotations

from collections.abc import Iterable

from muster.observe import words
from muster.observe.freshness import weighted_mean
from muster.observe.palette import STAGE_COLOURS, name
from muster.observe.report import Report
from muster.observe.section import LAST_BATCHES, Section, Table
from muster.types import Stage

BOUND_NAMES = ("engine", "path", "slots", "kv", "verify", "boot", "cpu")


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
                active or words.NOTHING,
            )
        )
    known = {n for b in report.bounds.values() for n in b}
    missing = ", ".join(n for n in BOUND_NAMES if n not in known)
    note = f"; bounds from the rates and times of this run, unknown: {missing}" if known and missing else ""
    shown = f"Last {len(rows)} batches" if len(report.batches) > LAST_BATCHES else "Batches"
    columns = ("step", "TTB", "trainer waited", "largest part", "collected in", "lower bound", "over it", "held by")
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
            _largest(s.parts.items()),
        )
        for s in report.stragglers
    ]
    columns = ("trajectory", "task", "took", "verdict", "turns", "tokens", "waited for")
    return Table(title="Slowest trajectories", columns=columns, rows=tuple(rows))


def _largest(parts: Iterable[tuple[Stage, float]], count: int = 3) -> str:
    ordered = sorted(parts, key=lambda p: -p[1])[:count]
    return ", ".join(f"{name(s)} {words.seconds(x)}" for s, x in ordered if x > 0)


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
        + (f" ({words.number(farthest)} nats away, by the odometer)" if farthest is not None else "")
    )
    replayed = sum(f.replayed for f in batches)
    again = f" Earlier successes were trained once more: {replayed}." if replayed else ""
    return Section(
        title=title,
        sentence=f"{age}; {_refused(report)}.{again}{_in_seconds(report)}",
        tables=(_ages(report), _divergences(report)),
    )


def _in_seconds(report: Report) -> str:
    """How old the policy was, mean over the steps that measured it."""
    sampled, trained = ([v for _, v in report.series.get(n, ())] for n in ("sampled_age_s", "trained_age_s"))
    if not sampled or not trained:
        return ""
    ages = (words.seconds(sum(values) / len(values)) for values in (sampled, trained))
    return " On average weights were {} old when they sampled a token, and {} when it was trained.".format(*ages)


def _refused(report: Report) -> str:
    """What was dropped for its age, by reason."""
    dropped = report.groups.dropped
    stale, diverged = dropped.get("too_stale", 0), dropped.get("diverged", 0)
    text = f"{words.plural(stale, 'group')} dropped as too stale"
    return f"{text}, {diverged} as too far from the trainer" if diverged else text


def _ages(report: Report) -> Table:
    batches = report.freshness[-LAST_BATCHES:]
    columns = ("step", "tokens", "lag mean", "lag max", "distance")
    replaying = any(f.replayed for f in report.freshness)
    partly = " (*: in part assumed, a step was not measured)" if any(f.assumed for f in batches) else ""
    return Table(
        title=f"Lag in versions; distance of the oldest token by the odometer, nats{partly}",
        columns=(*columns, "replayed", "their distance") if replaying else columns,
        rows=tuple(
            (
                str(f.step),
                words.number(f.tokens),
                f"{f.lag_mean:.2f}",
                str(f.lag_max),
                words.number(f.distance) + ("*" if f.assumed and f.distance is not None else ""),
                *((str(f.replayed), words.number(f.replayed_distance)) if replaying else ()),
            )
            for f in batches
        ),
    )


def _divergences(report: Report) -> Table:
    return Table(
        title="Divergence of trained tokens from the policy that sampled them, measured at the step, nats",
        columns=("step", "rms", "k3", "worst k3", "ess", "clipped", "masked"),
        rows=tuple(
            (
                str(f.step),
                words.number(f.rms),
                words.number(f.k3),
                words.number(f.worst_k3),
                words.number(f.ess),
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
        (everywhere, "stale ones included")
        if fresh is None
        else (fresh, "of the trainer's own version: numerics alone")
    )
    sentence = (
        f"Trainer and engine differ by {words.number(difference)} nats per token, over tokens {meaning}; "
        f"correction in force: {correction}."
    )
    largest = max((f.largest_ratio for f in report.freshness if f.largest_ratio is not None), default=None)
    canaries = [p.canary_difference for p in report.publications if p.canary_difference is not None]

    def row(label: str, *fields: str) -> tuple[str, ...]:
        return (label, *(words.number(_mean(report, f)) for f in fields))

    table = Table(
        title="Trainer against engine, per trained token",
        columns=("measure", "all tokens", "fresh: numerics", "stale: and staleness"),
        rows=(
            row("mean |difference of log-probabilities|, nats", "difference", "fresh_difference", "stale_difference"),
            row("k3, nats", "k3", "fresh_k3", "stale_k3"),
            (*row("effective sample size, share of tokens", "ess"), "", ""),
            ("largest ratio", words.number(largest), "", ""),
            ("canary after publication, largest, nats", "", words.number(max(canaries, default=None)), ""),
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
    kind = str(correction.get("kind", "unnamed")).replace("_", " ")
    return f"{kind} ({rest})" if rest else kind
