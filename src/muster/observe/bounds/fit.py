"""Capacities and cohorts read from a run's journal, so that its batches can be held against their lower bounds.

Law: pure over rows. What a run shows is what it reached, not what the machine can do: rates are the highest that
were sustained, so a run that never loaded its engines makes them look slow and its bounds loose (too high).

    decode spans, tokens ─► r1 (fastest hundredth of trajectories), R (rate of all, exceeded 1 % of the decoding time)
    configuration ─► slots, verifier slots, cache          not in a journal: prefill rate, boot rate, cpu

Prefill is left out of the bounds: a continuous-batching engine prefills beside its decoding, so that no span shows
how fast it could.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from muster.journal import BatchRow, GroupRow, Journal, SpanRow, TrajectoryRow
from muster.observe.bounds.lower import Bounds, Capacity, Cohort, lower_bounds
from muster.types import Stage, Turn

Spans = Mapping[str, Sequence[SpanRow]]


def bounds_by_batch(journal: Journal) -> dict[int, Bounds]:
    """Bounds of every batch whose groups were all admitted after it opened.

    A batch with work that began earlier has no fixed cohort: its TTB is a supply interval, and no bound of this
    kind holds for it.
    """
    batches = journal.rows(BatchRow)
    groups = {g.id: g for g in journal.rows(GroupRow)}
    trajectories = {t.id: t for t in journal.rows(TrajectoryRow, "purpose = 'train'")}
    spans = by_owner(journal.rows(SpanRow))
    capacity = fit_capacity(trajectories.values(), spans, journal.meta().get("config") or {})
    bounds: dict[int, Bounds] = {}
    for batch in batches:
        own = [groups[g] for g in batch.groups if g in groups]
        if own and all(g.admitted_at >= batch.opened_at for g in own):
            members = [trajectories[m] for m in batch.members if m in trajectories]
            bounds[batch.step] = lower_bounds(cohort_of(members, spans), capacity)
    return bounds


def by_owner(rows: Iterable[SpanRow]) -> Mapping[str, Sequence[SpanRow]]:
    """Each owner's spans, in their order."""
    owners: dict[str, list[SpanRow]] = {}
    for row in rows:
        owners.setdefault(row.owner, []).append(row)
    return owners


def cohort_of(members: Sequence[TrajectoryRow], spans: Spans) -> Cohort:
    """The work of these trajectories, as it was measured."""

    def seconds(*stages: Stage) -> np.ndarray:
        return np.array([_seconds(spans.get(t.id, ()), *stages) for t in members], np.float64)

    turns = [[Turn(**turn) for turn in t.turns] for t in members]
    return Cohort(
        output_tokens_N=np.array([t.sampled_tokens for t in members], np.float64),
        prompt_tokens_N=np.array(_fresh_tokens(members, turns), np.float64),
        sandbox_s_N=seconds(Stage.SANDBOX_START),
        tool_s_N=seconds(Stage.TOOL),
        verify_s_N=seconds(Stage.VERIFY),
        context_decode_N=np.array([sum(t.prompt_tokens * t.sampled_tokens for t in own) for own in turns], np.float64),
        context_tool_N=np.array([sum(t.prompt_tokens * t.duration_s for t in own) for own in turns], np.float64),
    )


def fit_capacity(trajectories: Iterable[TrajectoryRow], spans: Spans, config: Mapping[str, Any]) -> Capacity:
    """Fit the capacity that the run reached and was given. Unknown fields stay None."""
    rows = list(trajectories)
    decode = [(t.sampled_tokens, _seconds(spans.get(t.id, ()), Stage.DECODE)) for t in rows]
    stream = [tokens / duration for tokens, duration in decode if tokens and duration > 0]
    kv_tokens = _setting(config, "engine", "kv_capacity_tokens")
    replicas = _setting(config, "engine", "replicas") or 1
    return Capacity(
        stream_decode_rate=float(np.quantile(stream, 0.99)) if stream else None,
        decode_rate=_peak_rate(rows, spans),
        sandbox_slots=_setting(config, "sandbox", "slots"),
        verifier_slots=_setting(config, "sandbox", "verifier_slots"),
        kv_tokens=int(kv_tokens * replicas) if kv_tokens else None,
        hold_while_verifying=False,  # verification runs in a fork of its own, after the lease has ended
    )


def _peak_rate(rows: Sequence[TrajectoryRow], spans: Spans) -> float | None:
    """Tokens per second of all streams together that was exceeded in 1 % of the time in which any decoded.

    Each trajectory's tokens are spread evenly over its decode spans.
    """
    starts: list[float] = []
    ends: list[float] = []
    rates: list[float] = []
    for row in rows:
        own = [s for s in spans.get(row.id, ()) if s.stage == Stage.DECODE and s.end > s.start]
        duration = sum(s.end - s.start for s in own)
        for span in own:
            starts.append(span.start)
            ends.append(span.end)
            rates.append(row.sampled_tokens / duration)
    if not rates:
        return None
    times = np.concatenate([starts, ends])
    changes = np.concatenate([rates, np.negative(rates)])
    order = np.argsort(times, kind="stable")
    rate_E = np.cumsum(changes[order])[:-1]
    width_E = np.diff(times[order])
    busy = (rate_E > 1e-9) & (width_E > 0)
    by_rate = np.argsort(rate_E[busy])
    weight = np.cumsum(width_E[busy][by_rate])
    return float(rate_E[busy][by_rate][np.searchsorted(weight, 0.99 * weight[-1])])


def _fresh_tokens(members: Sequence[TrajectoryRow], turns: Sequence[Sequence[Turn]]) -> list[int]:
    """Prompt tokens that perfect prefix reuse would still prefill: what each turn adds, and the shared prompt once
    a group, on its first member.
    """
    seen: set[str] = set()
    fresh: list[int] = []
    for member, own in zip(members, turns, strict=True):
        known = own[0].prompt_tokens if own and member.group_id in seen else 0
        seen.add(member.group_id)
        total = 0
        for turn in own:
            total += max(0, turn.prompt_tokens - known)
            known = turn.prompt_tokens + turn.sampled_tokens
        fresh.append(total)
    return fresh


def _seconds(spans: Iterable[SpanRow], *stages: Stage) -> float:
    return sum(s.end - s.start for s in spans if s.stage in stages)


def _setting(config: Mapping[str, Any], *path: str) -> Any:
    value: Any = config
    for key in path:
        value = cast("Mapping[str, Any]", value).get(key) if isinstance(value, Mapping) else None
    return value
