"""Questions about what surrounds the batches: environments, publication of weights, evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from muster.journal import TrajectoryRow
from muster.observe import words
from muster.observe.outcomes import FLAGGED, GRADED, Outcomes
from muster.observe.report import Report
from muster.observe.sections.evidence import brief
from muster.observe.sections.section import Section, Table
from muster.types import Evaluation, PublicationRecord, Verdict

LAST_DOUBTS = 10


def environments(report: Report) -> Section:
    title = "4. Do the environments work?"
    train, groups = report.train, report.groups
    if not train.ended:
        return Section(title=title, sentence="No trajectory has ended yet.")
    graded = train.count(*GRADED)
    complete, flat = words.plural(groups.complete, "complete group"), words.percent(groups.no_gradient_share)
    gradient = f"{flat} of {complete} had no gradient" if groups.complete else "no group is complete yet"
    sentence = (
        f"{graded:,} of {words.plural(train.ended, 'training trajectory')} were graded by fact, infrastructure "
        f"failed {words.percent(train.share(Verdict.INFRA))} and {words.percent(train.share(Verdict.UNKNOWN))} ended "
        f"unknown; {gradient}."
    )
    dropped = "; ".join(f"{r.replace('_', ' ')} {n}" for r, n in sorted(groups.dropped.items())) or "none"
    fates = Table(
        title="Groups",
        columns=("admitted", "trained", "waiting", "dropped"),
        rows=((str(groups.admitted), str(groups.trained), str(groups.waiting), dropped),),
    )
    counts = [_outcomes(train), _outcomes(report.evaluate)] if report.evaluate.launched else [_outcomes(train)]
    doubts = _doubts(report.interesting)
    return Section(title=title, sentence=sentence, tables=(*counts, fates, *([doubts] if doubts.rows else [])))


def _doubts(interesting: Sequence[TrajectoryRow]) -> Table:
    """Outcomes that rest on more than the verifier's reward; the page and a replay show their evidence whole. Of those
    with the same evidence, one stands for all.
    """
    odd = [t for t in interesting if t.cause in FLAGGED or t.verdict not in GRADED]
    alike: dict[tuple[str, ...], list[TrajectoryRow]] = {}
    for t in odd:
        alike.setdefault((t.verdict, t.cause.replace("_", " "), brief(t.evidence)), []).append(t)
    return Table(
        title="Ungraded and flagged, and why (muster replay ID shows the evidence, and plays it again)",
        columns=("trajectory", "task", "alike", "verdict", "cause", "evidence"),
        rows=tuple(
            (them[0].id, them[0].task_id, words.plural(len(them) - 1, "other"), *key)
            for key, them in list(alike.items())[:LAST_DOUBTS]
        ),
    )


def _outcomes(counts: Outcomes) -> Table:
    ordered = sorted(counts.causes.items(), key=lambda item: (list(Verdict).index(item[0][0]), -item[1]))
    rows = [
        (str(verdict), cause.replace("_", " "), words.number(n), words.percent(n / counts.ended))
        for (verdict, cause), n in ordered
    ]
    if counts.continued:
        share = words.percent(counts.continued / counts.ended)
        rows.append(("of these", "went on from a keep point", words.number(counts.continued), share))
    rows += [("dropped", reason.replace("_", " "), words.number(n), "") for reason, n in counts.dropped.items()]
    if counts.unfinished:
        rows.append(("unfinished", "live or interrupted", words.number(counts.unfinished), ""))
    return Table(
        title=f"Outcomes, {counts.purpose}: {counts.launched:,} launched = {counts.ended:,} ended"
        f" + {sum(counts.dropped.values()):,} dropped + {counts.unfinished:,} unfinished"
        + (f" {counts.difference:+d} UNACCOUNTED" if counts.difference else ""),
        columns=("verdict", "cause", "count", "of ended"),
        rows=tuple(rows),
    )


def publication(report: Report) -> Section:
    title = "5. How do new weights reach the engines?"
    records = report.publications
    if not records:
        return Section(title=title, sentence="No publication yet.")
    latency = words.quantile([p.latency_s for p in records], 0.5)
    pause = words.quantile([p.pause_s for p in records], 0.5)
    unequal = sum(not p.digest_equal for p in records)
    digests = "every digest was equal" if not unequal else f"{unequal} DIGESTS DIFFERED"
    sentence = (
        f"New weights served {words.seconds(latency)} after the step (p50) and paused a replica for "
        f"{words.seconds(pause)}; {digests} after {words.plural(len(records), 'commit')}."
    )
    parts: Mapping[str, Sequence[float]] = {
        "export": [p.export_s for p in records],
        "transfer, while serving": [p.transfer_s for p in records],
        "stage, transfer included": [p.stage_s for p in records],
        "commit": [p.commit_s for p in records],
        "pause of a replica": [p.pause_s for p in records],
        "step ended to serving": [p.latency_s for p in records],
    }
    split = Table(
        title="Where the time goes",
        columns=("part", "p50", "p90", "max"),
        rows=tuple(
            (part, *(words.seconds(words.quantile(values, q)) for q in (0.5, 0.9, 1.0)))
            for part, values in parts.items()
        ),
    )
    return Section(title=title, sentence=sentence, tables=(split, _commits(records)))


def _commits(records: Sequence[PublicationRecord]) -> Table:
    """Table of the checks at each commit, and of what it did to requests in flight."""
    canaries = [p.canary_difference for p in records if p.canary_difference is not None]
    counts = {
        "held": sum(p.held for p in records),
        "finished": sum(p.finished for p in records),
        "aborted": sum(p.aborted for p in records),
        "tokens recomputed": sum(p.recomputed_tokens for p in records),
    }
    return Table(
        title="Checks, and requests in flight",
        columns=("commits", "bytes each", "digest equal", "fixed tokens differ by", *counts),
        rows=(
            (
                str(len(records)),
                words.size(words.quantile([p.size_bytes for p in records], 0.5)),
                f"{sum(p.digest_equal for p in records)} of {len(records)}",
                words.number(max(canaries, default=None)),
                *map(words.number, counts.values()),
            ),
        ),
    )


def evaluation(report: Report) -> Section:
    title = "6. Is it better, measured as it will be served?"
    taken = report.evaluations
    if not taken:
        return Section(title=title, sentence="No evaluation yet.")
    first, last = taken[0], taken[-1]
    changed = _changed(first, last)
    same = f"what differs between them: {', '.join(changed)}" if changed else "nothing else differs between them"
    if first is last:
        sentence = f"The one evaluation so far, at version {last.version.number}, passes {_rate(last)}."
    else:
        sentence = (
            f"The pass rate went from {_rate(first)} at version {first.version.number} to {_rate(last)} at version "
            f"{last.version.number} ({words.points(last.pass_rate - first.pass_rate)}, intervals "
            f"of 95 % {'apart' if _apart(first, last) else 'overlap'}); {same}."
        )
    tables = (_taken(taken), _families(taken), _fingerprint(last, changed))
    return Section(title=title, sentence=sentence, tables=tables)


def _taken(taken: Sequence[Evaluation]) -> Table:
    return Table(
        title="Evaluations (95 % Wilson intervals; ungraded trajectories are outside the rate)",
        columns=("step", "version", "pass rate", "interval", "passed", "graded", "ungraded", "took"),
        rows=tuple(
            (
                str(e.step),
                str(e.version.number),
                words.percent(e.pass_rate),
                f"{words.percent(e.low)} to {words.percent(e.high)}",
                str(e.passed),
                str(e.graded),
                str(sum(e.ungraded.values())),
                words.seconds(e.ended - e.started),
            )
            for e in taken
        ),
        figure="learning",
    )


def _families(taken: Sequence[Evaluation]) -> Table:
    """The first and the last, or the only one."""
    shown = taken if len(taken) == 1 else (taken[0], taken[-1])

    def rate(counts: tuple[int, int] | None) -> str:
        return (
            f"{words.percent(counts[0] / counts[1])} ({counts[0]}/{counts[1]})"
            if counts and counts[1]
            else words.NOTHING
        )

    names = sorted({family for e in shown for family in e.by_family})
    return Table(
        title="By family",
        columns=("family", *(f"version {e.version.number}" for e in shown)),
        rows=tuple((n or "(none)", *(rate(e.by_family.get(n)) for e in shown)) for n in names),
    )


def _fingerprint(last: Evaluation, changed: Sequence[str]) -> Table:
    return Table(
        title="What the last number was taken on",
        columns=("property", "value", "since the first"),
        rows=tuple(
            (str(k), _short(k, v), "changed" if k in changed else "same") for k, v in sorted(last.fingerprint.items())
        ),
    )


def _changed(first: Evaluation, last: Evaluation) -> list[str]:
    """Properties that differ, the policy itself apart: that one is meant to."""
    policy = {"version", "model_digest", "digest"}
    keys = {*first.fingerprint, *last.fingerprint} - policy
    return sorted(k for k in keys if first.fingerprint.get(k) != last.fingerprint.get(k))


def _apart(first: Evaluation, last: Evaluation) -> bool:
    return first.high < last.low or last.high < first.low


def _rate(e: Evaluation) -> str:
    return f"{words.percent(e.pass_rate)} [{100 * e.low:.1f}, {100 * e.high:.1f}]"


def _short(key: str, value: Any) -> str:
    """Digests by their first twelve digits."""
    text = str(value)
    if isinstance(value, Mapping):
        text = ", ".join(f"{name}={part}" for name, part in cast("Mapping[str, Any]", value).items())
    if "digest" in key:
        return text[:12]
    return text if len(text) <= 60 else text[:57] + "..."
