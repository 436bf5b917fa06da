"""One frame of the live view: a status and a history in, something that rich can print out.

Law: pure; it reads no clock and no journal. A frame fits 100 x 40; narrower terminals get one column.

    header: run, step, time        learning: reward, evaluation       batches: TTB by cause
    trajectories by stage | outcomes and freshness | engines and sandboxes | devices        notice
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from muster.observe import words
from muster.observe.critical_path import BatchTime
from muster.observe.live import WINDOW_S, History
from muster.observe.palette import STAGE_COLOURS, STAGE_LETTERS, STATE_COLOURS, STATE_NAMES, name
from muster.orchestrator.status import RunStatus
from muster.types import DeviceState, Evaluation, Stage, Verdict

WIDE = 96
SPARKS = "▁▂▃▄▅▆▇█"
VERDICT_STYLES = {
    Verdict.SUCCESS: "green",
    Verdict.FAILURE: "default",
    Verdict.INFRA: "red",
    Verdict.UNKNOWN: "magenta",
}


def frame(status: RunStatus, history: History, *, now: float, width: int, colour: bool = True) -> RenderableType:
    """Without `colour`, bars are drawn with the letters of the legend."""
    bar = max(20, min(72, width - 36))
    parts: list[RenderableType] = [
        _header(status, now, width),
        _panel("learning", _learning(history, width)),
        _panel("time to trainable batch", _batches(history.batches, bar, colour)),
    ]
    left = [_panel("trajectories now", _trajectories(status)), _panel("engines and sandboxes", _engines(status))]
    right = [_panel("outcomes", _outcomes(history)), _panel("freshness", _freshness(status, history))]
    if width >= WIDE:
        grid = Table.grid(expand=True, padding=0)
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        grid.add_row(Group(*left), Group(*right))
        parts.append(grid)
    else:
        parts += [*left, *right]
    parts.append(_panel(f"devices, last {WINDOW_S:.0f} s", _devices(status, history, now, bar // 2, colour)))
    if status.notice:
        parts.append(Text(status.notice, style="bold yellow", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values, scaled between their own extremes."""
    shown = list(values)[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((v - low) * scale)] for v in shown)


def _panel(title: str, body: RenderableType) -> Panel:
    return Panel(body, title=title, title_align="left", padding=(0, 1), border_style="dim")


def _header(status: RunStatus, now: float, width: int) -> RenderableType:
    done = status.step / status.steps if status.steps else 0.0
    filled = round(12 * min(1.0, done))
    state = status.trainer_state
    doing = STATE_NAMES[DeviceState(state)] if state in set(DeviceState) else state or words.NOTHING
    line = Text.assemble(
        ("muster ", "bold"),
        (status.run, "bold cyan"),
        f"  step {status.step}/{status.steps} ",
        ("━" * filled, "green"),
        ("─" * (12 - filled), "dim"),
        f"  {words.clock(now - status.started)}, ETA {words.clock(status.eta_s)}",
        f"  version {status.version}  trainer: {doing}",
        no_wrap=True,
        overflow="ellipsis",
    )
    line.truncate(width)
    return line


def _learning(history: History, width: int) -> RenderableType:
    rewards = [v for _, v in history.series["reward"]]
    latest = words.number(rewards[-1]) if rewards else words.NOTHING
    line = Text.assemble("reward ", (latest, "bold"), " ", (sparkline(rewards, max(10, width - 80)), "green"))
    line.append("   held out ")
    line.append(*_evaluation(history.last_evaluation))
    first, last = history.first_evaluation, history.last_evaluation
    if first and last and first is not last:
        line.append(f" ({words.points(last.pass_rate - first.pass_rate)} since v{first.version.number})")
    return line


def _evaluation(e: Evaluation | None) -> tuple[str, str]:
    if e is None:
        return "not evaluated yet", "dim"
    return f"{words.percent(e.pass_rate)} [{100 * e.low:.0f}, {100 * e.high:.0f}] at v{e.version.number}", "bold"


# --- batches ------------------------------------------------------------------------------------------


def _batches(batches: Sequence[BatchTime], bar: int, colour: bool) -> RenderableType:
    if not batches:
        return Text("no batch yet", style="dim")
    longest = max(b.ttb_s for b in batches)
    grid = Table.grid(padding=(0, 1))
    for justify in ("right", "right", "right", "left"):
        grid.add_column(justify=justify, no_wrap=True)
    for b in batches:
        width = round(bar * b.ttb_s / longest) if longest > 0 else 0
        grid.add_row(
            f"step {b.step}",
            words.seconds(b.ttb_s),
            f"waited {words.seconds(b.trainer_wait_s)}",
            _parts_bar(b.parts, width, colour),
        )
    return Group(grid, _legend(batches, bar + 28, colour))


def _parts_bar(parts: Mapping[Stage, float], width: int, colour: bool) -> Text:
    """Segments in the order of the stages; the cuts are rounded, so that their widths add up to `width`."""
    whole = sum(parts.values())
    text, at, drawn = Text(), 0.0, 0
    for stage in Stage:
        at += parts.get(stage, 0.0)
        until = round(width * at / whole) if whole > 0 else 0
        glyph = "█" if colour else STAGE_LETTERS[stage]
        text.append(glyph * (until - drawn), STAGE_COLOURS[stage])
        drawn = until
    return text


def _legend(batches: Sequence[BatchTime], width: int, colour: bool) -> Text:
    """The largest causes, as many as fit."""
    sums = {s: sum(b.parts.get(s, 0.0) for b in batches) for s in Stage}
    whole = sum(sums.values()) or 1.0
    text = Text(no_wrap=True)
    for stage in sorted((s for s in sums if sums[s] > 0), key=lambda s: -sums[s]):
        mark = "█" if colour else STAGE_LETTERS[stage]
        entry = f" {name(stage)} {100 * sums[stage] / whole:.0f} %   "
        if len(text) + len(entry) >= width:
            break
        text.append(mark, STAGE_COLOURS[stage]).append(entry, "dim")
    return text


# --- the present --------------------------------------------------------------------------------------


def _trajectories(status: RunStatus) -> RenderableType:
    live = sum(status.stages.values())
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right")
    grid.add_column()
    grid.add_row("live", str(live), Text(f"in {status.live_groups} groups", style="dim"))
    grid.add_row("ready", str(status.ready_groups), Text(f"of {status.batch_groups} groups for a batch", style="dim"))
    ordered = sorted(status.stages.items(), key=lambda item: -item[1])[:6]
    for stage, count in ordered:
        known = Stage(stage)
        grid.add_row(name(known), str(count), Text("█" * round(16 * count / live), style=STAGE_COLOURS[known]))
    return grid


def _outcomes(history: History) -> RenderableType:
    total = sum(history.outcomes.values())
    if not total:
        return Text("none yet", style="dim")
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right")
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for verdict in Verdict:
        causes = {cause: n for (v, cause), n in history.outcomes.items() if v is verdict}
        count = sum(causes.values())
        others = {c: n for c, n in causes.items() if c not in ("verifier_passed", "verifier_failed")}
        why = ", ".join(f"{c.replace('_', ' ')} {n}" for c, n in sorted(others.items(), key=lambda i: -i[1])[:2])
        share = f"{words.percent(count / total):>7}  " if count else ""
        grid.add_row(Text(verdict, style=VERDICT_STYLES[verdict]), f"{count:,}", Text.assemble(share, (why, "dim")))
    return grid


def _freshness(status: RunStatus, history: History) -> RenderableType:
    metrics = history.last_step.metrics if history.last_step else {}
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column()
    grid.add_row("lag max, mean", f"{_latest(history, 'lag_max')}, {_latest(history, 'lag_mean')}")
    grid.add_row("k3, ESS", f"{words.number(metrics.get('k3'))}, {words.number(metrics.get('ess'))}")
    grid.add_row("no gradient", f"{_latest(history, 'groups_no_gradient')} groups for the last batch")
    grid.add_row("loss, grad norm", f"{words.number(metrics.get('loss'))}, {words.number(metrics.get('grad_norm'))}")
    return grid


def _latest(history: History, series: str) -> str:
    values = history.series[series]
    return words.number(values[-1][1]) if values else words.NOTHING


def _engines(status: RunStatus) -> RenderableType:
    engines = status.engines
    prompt = sum(e.prompt_tokens for e in engines)
    cached = sum(e.cached_tokens for e in engines)
    capacity = sum(e.capacity for e in engines)
    running, waiting = sum(e.running for e in engines), sum(e.waiting for e in engines)
    used, room = sum(e.kv_used_tokens for e in engines), sum(e.kv_capacity_tokens for e in engines)
    pool = status.pool
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column()
    hits = words.percent(cached / prompt if prompt else None)
    grid.add_row("tokens/s, cache hits", f"{words.number(status.tokens_per_s)}, {hits}")
    grid.add_row("running, waiting", f"{running} of {capacity}, {waiting}")
    grid.add_row("cache in use", words.percent(used / room if room else None))
    grid.add_row("sandboxes", f"{pool.live}/{pool.slots}, warm {pool.warm}, waiting {pool.waiting}")
    return grid


def _devices(status: RunStatus, history: History, now: float, bar: int, colour: bool) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    present = DeviceState(status.trainer_state) if status.trainer_state in set(DeviceState) else None
    for device in (*(e.replica for e in status.engines), "trainer"):
        shares = history.device_shares(device, now, present if device == "trainer" else None)
        ordered = sorted(shares.items(), key=lambda item: -item[1])
        text = ", ".join(f"{STATE_NAMES[s]} {100 * x:.0f} %" for s, x in ordered[:3]) or "no report yet"
        grid.add_row(device, _shares_bar(shares, bar) if colour else "", text)
    return grid


def _shares_bar(shares: Mapping[DeviceState, float], width: int) -> Text:
    text, at, drawn = Text(), 0.0, 0
    for state in DeviceState:
        at += shares.get(state, 0.0)
        until = round(width * at)
        text.append("█" * (until - drawn), STATE_COLOURS[state])
        drawn = until
    return text
