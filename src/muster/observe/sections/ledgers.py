"""The ledgers: where the devices' hours went, whether batches are biased, whether the counts add up."""

from __future__ import annotations

from muster.observe import words
from muster.observe.palette import STATE_COLOURS, STATE_NAMES
from muster.observe.report import Report
from muster.observe.sections.section import LAST_BATCHES, Section, Table
from muster.types import DeviceState

MOST_ENGINES = 4
"""That have a column each; of more, one column has the mean."""


def device_hours(report: Report) -> Section:
    title = "What the devices did"
    strips = report.devices.strips
    if not strips:
        return Section(title=title, sentence="No device has reported yet.")
    seconds = report.devices.seconds()
    whole = sum(seconds.values())
    ordered = sorted(seconds, key=lambda s: -seconds[s])
    engines = report.devices.engines
    waiting = sum(report.devices.share(s, *engines) for s in (DeviceState.ENV_WAIT, DeviceState.NO_WORK))
    running = report.devices.mean_running
    busy = f"; a busy engine ran {words.number(running)} requests on average" if running else ""
    trainer = report.devices.share(DeviceState.TRAIN, "trainer")
    sentence = (
        f"{words.plural(len(strips), 'device')}: engines waited {words.percent(waiting if engines else None)} of their "
        f"time and the trainer trained {words.percent(trainer)} of its own{busy}."
    )
    apart = len(engines) <= MOST_ENGINES
    others = {d: (d,) for d in strips if apart or d not in engines}
    shown = others if apart else {f"{len(engines)} engines": tuple(engines), **others}
    rows = tuple(
        (
            STATE_NAMES[s],
            words.seconds(seconds[s]),
            *(words.percent(report.devices.share(s, *d)) for d in shown.values()),
        )
        for s in ordered
    )
    table = Table(
        title="Time by state, summed over the devices, and share of each one's time",
        columns=("state", "in all", *shown),
        rows=rows,
        shares=tuple(seconds[s] / whole if whole else 0.0 for s in ordered),
        colours=tuple(STATE_COLOURS[s] for s in ordered),
        figure="devices",
    )
    return Section(title=title, sentence=sentence, tables=(table,))


def bias(report: Report) -> Section:
    title = "Bias: does what was trained look like what was dispatched?"
    ledger = report.bias
    if not ledger.run.chosen.count:
        return Section(title=title, sentence="Nothing has been trained yet.")
    fields = {
        "mean_tokens": "length, mean",
        "p90_tokens": "length, p90",
        "mean_tool_s": "tool time",
        "solve_rate": "solve rate",
    }
    length = ledger.run.ratio("mean_tokens")
    share = ledger.discarded_tokens / ledger.sampled_tokens if ledger.sampled_tokens else 0.0
    sentence = (
        f"Trained trajectories have {words.ratio(length)} the mean length of all that was dispatched; "
        f"{words.percent(share)} of the sampled tokens were discarded."
    )
    recent = (ledger.run, *ledger.batches[-LAST_BATCHES:])
    ratios = Table(
        title="Batch over the work dispatched beside it (1.00x: no bias)",
        columns=("batch", "members", *fields.values()),
        rows=tuple(
            ("all" if c.step is None else str(c.step), str(c.chosen.count), *(words.ratio(c.ratio(f)) for f in fields))
            for c in recent
        ),
    )
    deciles = Table(
        title="Share trained by decile of length, shortest first",
        columns=tuple(str(i + 1) for i in range(10)),
        rows=(tuple(words.percent(x) for x in ledger.inclusion),) if ledger.inclusion else (),
    )
    reasons = [(f"groups: {r}", n) for r, n in ledger.discarded_groups.items()]
    reasons += [(f"trajectories: {r}", n) for r, n in ledger.discarded_trajectories.items()]
    discarded = Table(
        title="Discarded", columns=("reason", "count"), rows=tuple((r.replace("_", " "), str(n)) for r, n in reasons)
    )
    return Section(title=title, sentence=sentence, tables=tuple(t for t in (ratios, deciles, discarded) if t.rows))


def accounting(report: Report) -> Section:
    a = report.accounting
    fates = (
        f"{words.plural(a.graded, 'graded trajectory')}: {a.trained:,} trained once, {a.kept:,} kept for a later "
        f"batch, {a.dropped:,} dropped with their group"
    )
    bugs = f"{len(a.lost)} lost, {len(a.trained_twice)} trained twice"
    rows = (
        ("launches", words.number(a.launches)),
        ("ended, graded", words.number(a.graded)),
        ("ended, ungraded", words.number(a.ungraded)),
        ("dropped by us", words.number(sum(report.train.dropped.values()))),
        ("live or interrupted", words.number(a.unfinished)),
        ("unaccounted for", words.number(report.train.difference)),
        ("earlier successes trained once more", words.number(a.reused)),
    )
    table = Table(title="Training launches", columns=("fate", "count"), rows=rows)
    begun = report.sessions[0].start if report.sessions else 0.0
    events = Table(
        title="Events",
        columns=("after", "kind", "message"),
        rows=tuple(
            (words.clock(at - begun), kind.replace("_", " "), words.line(message, 200))
            for at, kind, message in report.events[-LAST_BATCHES:]
        ),
    )
    tables = (table, events) if events.rows else (table,)
    return Section(title="Does it add up?", sentence=f"{fates}; {bugs}.", tables=tables)
