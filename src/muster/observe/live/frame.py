"""One frame of the live view: a status and a history in, lines of text out.

Law: pure; it reads no clock and no journal. A frame fits 100 x 40; narrower terminals get one column. It is drawn
twice a second beside an engine and a trainer, so it composes lines itself: nested layouts cost ten times as much.

    header: run, step, time        learning: reward, evaluation       batches: TTB by cause
    trajectories by stage | outcomes and freshness | engines and sandboxes | devices        notice
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from muster.observe import words
from muster.observe.critical_path import BatchTime
from muster.observe.live.history import WINDOW_S, History
from muster.observe.live.layout import beside, box, columns
from muster.observe.palette import STAGE_COLOURS, STAGE_LETTERS, STATE_COLOURS, STATE_NAMES, name
from muster.orchestrator.status import RunStatus
from muster.types import DeviceState, Evaluation, Stage, Verdict

WIDE = 96
SPARKS = "▁▂▃▄▅▆▇█"
VERDICT_STYLES = {Verdict.SUCCESS: "green", Verdict.FAILURE: "", Verdict.INFRA: "red", Verdict.UNKNOWN: "magenta"}


def frame(status: RunStatus, history: History, *, now: float, width: int, colour: bool = True) -> Text:
    """At most `width` cells wide. Without `colour`, bars are drawn with the letters of the legend."""
    width = max(width, 40)
    half = width // 2 if width >= WIDE else width
    left = [
        *box("trajectories now", _trajectories(status), half),
        *box("engines and sandboxes", _engines(status), half),
    ]
    right = [
        *box("outcomes", _outcomes(history), width - half or width),
        *box("freshness", _freshness(status, history), width - half or width),
    ]
    bar = max(8, width - 40)
    lines = [
        _header(status, now, width),
        *box("learning", _learning(history, width), width),
        *box("time to trainable batch", _batches(history.batches, bar, colour), width),
        *(beside(left, right, half) if half < width else [*left, *right]),
        *box(f"devices, last {WINDOW_S:.0f} s", _devices(status, history, now, bar // 2, colour), width),
    ]
    if status.notice:
        notice = Text(status.notice, "bold yellow")
        notice.truncate(width, overflow="ellipsis")
        lines.append(notice)
    return Text("\n", no_wrap=True, end="").join(lines)


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values, scaled between their own extremes."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((v - low) * scale)] for v in shown)


def _header(status: RunStatus, now: float, width: int) -> Text:
    done = status.step / status.steps if status.steps else 0.0
    filled = round(12 * min(1.0, done))
    state = _state(status.trainer_state)
    line = Text.assemble(
        ("muster ", "bold"),
        (status.run, "bold cyan"),
        f"  step {status.step}/{status.steps} ",
        ("━" * filled, "green"),
        ("─" * (12 - filled), "dim"),
        f"  {words.clock(now - status.started)}, ETA {words.clock(status.eta_s)}",
        f"  version {status.version}",
        f"  trainer: {STATE_NAMES[state]}" if state else "",
    )
    line.truncate(width, overflow="ellipsis")
    return line


def _learning(history: History, width: int) -> list[Text]:
    rewards = [v for _, v in history.series["reward"]]
    latest = words.number(rewards[-1]) if rewards else words.NOTHING
    line = Text.assemble("reward ", (latest, "bold"), " ", (sparkline(rewards, max(8, width - 80)), "green"))
    line.append("   held out ").append(*_evaluation(history.last_evaluation))
    first, last = history.first_evaluation, history.last_evaluation
    if first and last and first is not last:
        line.append(f" ({words.points(last.pass_rate - first.pass_rate)} since v{first.version.number})")
    return [line]


def _evaluation(e: Evaluation | None) -> tuple[str, str]:
    if e is None:
        return "not evaluated yet", "dim"
    return f"{words.percent(e.pass_rate)} [{100 * e.low:.0f}, {100 * e.high:.0f}] at v{e.version.number}", "bold"


# --- batches ------------------------------------------------------------------------------------------


def _batches(batches: Sequence[BatchTime], bar: int, colour: bool) -> list[Text]:
    if not batches:
        return [Text("no batch yet", "dim")]
    longest = max(b.ttb_s for b in batches)
    rows = [
        (
            f"step {b.step}",
            words.seconds(b.ttb_s),
            f"waited {words.seconds(b.trainer_wait_s)}",
            _parts_bar(b.parts, round(bar * b.ttb_s / longest) if longest > 0 else 0, colour),
        )
        for b in batches
    ]
    return [*columns(rows, right=(0, 1, 2)), _legend(batches, bar + 30, colour)]


def _parts_bar(parts: Mapping[Stage, float], width: int, colour: bool) -> Text:
    """Segments in the order of the stages; the cuts are rounded, so that their widths add up to `width`."""
    whole = sum(parts.values())
    text, at, drawn = Text(), 0.0, 0
    for stage in Stage:
        at += parts.get(stage, 0.0)
        until = round(width * at / whole) if whole > 0 else 0
        text.append(("█" if colour else STAGE_LETTERS[stage]) * (until - drawn), STAGE_COLOURS[stage])
        drawn = until
    return text


def _legend(batches: Sequence[BatchTime], width: int, colour: bool) -> Text:
    """The largest causes, as many as fit."""
    parts = [b.parts for b in batches]
    sums = {s: sum(p.get(s, 0.0) for p in parts) for s in Stage}
    whole = sum(sums.values()) or 1.0
    text = Text()
    for stage in sorted((s for s in sums if sums[s] > 0), key=lambda s: -sums[s]):
        entry = f" {name(stage)} {100 * sums[stage] / whole:.0f} %   "
        if len(text) + len(entry) >= width:
            break
        text.append("█" if colour else STAGE_LETTERS[stage], STAGE_COLOURS[stage]).append(entry, "dim")
    return text


# --- the present --------------------------------------------------------------------------------------


def _trajectories(status: RunStatus) -> list[Text]:
    live = sum(status.stages.values())
    rows: list[tuple[str | Text, ...]] = [
        ("live", str(live), Text(f"in {status.live_groups} groups", "dim")),
        ("ready", str(status.ready_groups), Text(f"of {status.batch_groups} groups for a batch", "dim")),
    ]
    for stage, count in sorted(status.stages.items(), key=lambda item: -item[1])[:6]:
        if count:
            rows.append(
                (name(Stage(stage)), str(count), Text("█" * round(16 * count / live), STAGE_COLOURS[Stage(stage)]))
            )
    return columns(rows, right=(1,))


def _outcomes(history: History) -> list[Text]:
    total = sum(history.outcomes.values())
    if not total:
        return [Text("none yet", "dim")]
    rows: list[tuple[str | Text, ...]] = []
    for verdict in Verdict:
        causes = {cause: n for (v, cause), n in history.outcomes.items() if v is verdict}
        count = sum(causes.values())
        others = sorted(
            ((n, c) for c, n in causes.items() if c not in ("verifier_passed", "verifier_failed")), reverse=True
        )
        why = ", ".join(f"{c.replace('_', ' ')} {n}" for n, c in others[:2])
        share = words.percent(count / total) if count else ""
        rows.append((Text(verdict, VERDICT_STYLES[verdict]), f"{count:,}", share, Text(why, "dim")))
    return columns(rows, right=(1, 2))


def _freshness(status: RunStatus, history: History) -> list[Text]:
    metrics = history.last_step.metrics if history.last_step else {}
    rows = [
        ("lag max, mean", f"{_latest(history, 'lag_max')}, {_latest(history, 'lag_mean')}"),
        ("k3, ESS", f"{words.number(metrics.get('k3'))}, {words.number(metrics.get('ess'))}"),
        ("no gradient", f"{_latest(history, 'groups_no_gradient')} groups for the last batch"),
        ("loss, grad norm", f"{words.number(metrics.get('loss'))}, {words.number(metrics.get('grad_norm'))}"),
    ]
    return columns(rows)


def _latest(history: History, series: str) -> str:
    values = history.series[series]
    return words.number(values[-1][1]) if values else words.NOTHING


def _engines(status: RunStatus) -> list[Text]:
    engines = status.engines
    prompt = sum(e.prompt_tokens for e in engines)
    cached = sum(e.cached_tokens for e in engines)
    room = sum(e.kv_capacity_tokens for e in engines)
    used = sum(e.kv_used_tokens for e in engines)
    running, waiting = sum(e.running for e in engines), sum(e.waiting for e in engines)
    hits = words.percent(cached / prompt if prompt else None)
    pool = status.pool
    rows = [
        ("tokens/s, cache hits", f"{words.number(status.tokens_per_s)}, {hits}"),
        ("running, waiting", f"{running} of {sum(e.capacity for e in engines)}, {waiting}"),
        ("cache in use", words.percent(used / room if room else None)),
        ("sandboxes", f"{pool.live}/{pool.slots}, warm {pool.warm}, waiting {pool.waiting}"),
    ]
    return columns(rows)


def _devices(status: RunStatus, history: History, now: float, bar: int, colour: bool) -> list[Text]:
    present = _state(status.trainer_state)
    rows: list[tuple[str | Text, ...]] = []
    for device in (*(e.replica for e in status.engines), "trainer"):
        shares = history.device_shares(device, now, present if device == "trainer" else None)
        ordered = sorted(shares.items(), key=lambda item: -item[1])
        text = ", ".join(f"{STATE_NAMES[s]} {100 * x:.0f} %" for s, x in ordered[:3]) or "no report yet"
        rows.append((device, *([_shares_bar(shares, bar)] if colour else []), text))
    return columns(rows)


def _shares_bar(shares: Mapping[DeviceState, float], width: int) -> Text:
    text, at, drawn = Text(), 0.0, 0
    for state in DeviceState:
        at += shares.get(state, 0.0)
        until = round(width * at)
        text.append("█" * (until - drawn), STATE_COLOURS[state])
        drawn = until
    return text


def _state(value: str) -> DeviceState | None:
    return DeviceState(value) if value in set(DeviceState) else None
