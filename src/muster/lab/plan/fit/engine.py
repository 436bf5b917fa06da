"""The engine's timing, read from a run's journal: what a step, a stream and a prompt token cost it.

Law: pure over rows. A step's time is linear in its work (`engine.timing`), and every request that decodes at
an instant sees the same steps, so a request's seconds are linear in the work done beside it while it ran:

    decode span    m steps:   seconds = step_s · m + row_s · m·D + context_s · m·C + prefill_s · P + pair_s · Q
    prefill span   s steps:   the same, with s = P / (tokens of a step), at least one

    D, C   mean number of requests that decode during the span, and the sum of their contexts      (of one replica)
    P, Q   prompt tokens computed during the span, and the pairs that they attend to

Non-negative least squares over all spans says what each unit costs. The journal does not say which replica served a
turn: with several, each is taken to have an equal share of what ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from muster.engine.config import EmulatedEngineConfig
from muster.engine.timing import EngineTiming, pairs_of
from muster.errors import UserError
from muster.journal import SpanRow, TrajectoryRow
from muster.lab.emulated.calibrate import non_negative
from muster.types import Stage

Array = npt.NDArray[np.float64]

LEAST_VISITS = 16
"""Requests below which nothing is fitted: five constants need more than five observations."""
_IN_ENGINE = frozenset({Stage.ENGINE_QUEUE, Stage.PUBLICATION_PAUSE, Stage.RECOMPUTE, Stage.PREFILL, Stage.DECODE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One turn's request as the journal shows it. Instants in seconds, counts in tokens.

    prompt: computed for it, without what was cached. context: the whole prompt. steps: decode steps, one less than
    the tokens sampled, because the first comes with the end of its prefill.
    """

    prompt: int
    context: int
    steps: int
    prefill: tuple[float, float]
    decode: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFit:
    """Fit of the engine. `error`: median over requests of |predicted - measured| / measured seconds in its batch."""

    timing: EngineTiming
    visits: int
    error: float

    def faster(self, factor: float) -> EngineFit:
        """The same engine, each of whose steps takes `factor` of the time."""
        fields = {name: seconds * factor for name, seconds in self.timing.model_dump().items()}
        return replace(self, timing=EngineTiming(**fields))


def visits_of(trajectory: TrajectoryRow, spans: Sequence[SpanRow]) -> list[Visit]:
    """The requests of one trajectory; empty where spans and turns do not pair up, as after a lost request."""
    runs = _runs(spans)
    turns = trajectory.turns
    if len(runs) != len(turns):
        return []
    return [
        Visit(
            prompt=max(0, turn["prompt_tokens"] - turn["cached_tokens"]),
            context=turn["prompt_tokens"],
            steps=max(0, turn["sampled_tokens"] - 1),
            prefill=_hull(run, Stage.PREFILL, Stage.RECOMPUTE),
            decode=_hull(run, Stage.DECODE),
        )
        for turn, run in zip(turns, runs, strict=True)
    ]


def fit_timing(visits: Sequence[Visit], limits: EmulatedEngineConfig, *, replicas: int = 1) -> EngineFit:
    """The constants that explain the visits best. `limits`: everything but the timing.

    Raises `UserError` when there are too few, or their seconds do not depend on their work.
    """
    counts_RC, seconds_R = _observations(visits, limits, replicas)
    if len(seconds_R) < LEAST_VISITS:
        raise UserError(
            f"{len(seconds_R)} requests in the journal are too few to fit an engine (it takes {LEAST_VISITS}); "
            "name one with --engine"
        )
    # relative errors would let the many short spans decide, absolute ones the few long ones
    weight_R = 1 / np.sqrt(seconds_R)
    step_s, row_s, context_s, prefill_s, pair_s = non_negative(
        counts_RC * weight_R[:, None], seconds_R * weight_R
    ).tolist()
    if step_s <= 0 and row_s <= 0:
        raise UserError("the requests' seconds do not depend on their tokens; name an engine with --engine")
    timing = EngineTiming(
        step_s=max(step_s, 1e-6), row_s=row_s, context_s=context_s, prefill_s=max(prefill_s, 1e-9), pair_s=pair_s
    )
    predicted_R = counts_RC @ np.array([step_s, row_s, context_s, prefill_s, pair_s])
    error = float(np.median(np.abs(predicted_R - seconds_R) / seconds_R))
    return EngineFit(timing=timing, visits=len(visits), error=error)


def _observations(visits: Sequence[Visit], limits: EmulatedEngineConfig, replicas: int) -> tuple[Array, Array]:
    """Work counts (one column a constant of `EngineTiming`) and seconds, one row a span."""
    decode_V2 = np.array([v.decode for v in visits], np.float64).reshape(-1, 2)
    prefill_V2 = np.array([v.prefill for v in visits], np.float64).reshape(-1, 2)
    context_V = np.array([v.context + v.steps / 2 for v in visits], np.float64)
    prompt_V = np.array([v.prompt for v in visits], np.float64)
    pairs_V = np.array([pairs_of(v.context - v.prompt, v.prompt) for v in visits], np.float64)
    width_V = np.maximum(prefill_V2[:, 1] - prefill_V2[:, 0], 1e-9)
    rows = _Load(decode_V2, np.ones(len(visits)))
    contexts = _Load(decode_V2, context_V)
    prompts = _Load(prefill_V2, prompt_V / width_V)
    pairs = _Load(prefill_V2, pairs_V / width_V)
    steps_V = np.array([v.steps for v in visits], np.float64)

    def shared(load: _Load, spans_V2: Array, own_V: Array) -> Array:
        """A request's own work is on its replica for certain, what ran beside it by chance."""
        return own_V + np.maximum(0.0, load.inside(spans_V2) - own_V) / replicas

    def work(spans_V2: Array, steps_V: Array, own: Sequence[Array]) -> Array:
        own_rows_V, own_context_V, own_prompt_V, own_pairs_V = own
        per_step_V = steps_V / np.maximum(spans_V2[:, 1] - spans_V2[:, 0], 1e-9)
        columns = [
            steps_V,
            per_step_V * shared(rows, spans_V2, own_rows_V),
            per_step_V * shared(contexts, spans_V2, own_context_V),
            shared(prompts, spans_V2, own_prompt_V),
            shared(pairs, spans_V2, own_pairs_V),
        ]
        return np.stack(columns, axis=1)

    nothing_V = np.zeros(len(visits))
    decode_s_V = decode_V2[:, 1] - decode_V2[:, 0]
    chunks_V = np.maximum(1.0, shared(prompts, prefill_V2, prompt_V) / limits.max_step_tokens)
    decoding = work(decode_V2, steps_V, (decode_s_V, context_V * decode_s_V, nothing_V, nothing_V))
    prefilling = work(prefill_V2, chunks_V, (nothing_V, nothing_V, prompt_V, pairs_V))
    counts = np.concatenate([decoding, prefilling])
    spans_R2 = np.concatenate([decode_V2, prefill_V2])
    busy_R = np.concatenate([steps_V > 0, prompt_V > 0])
    seconds_R = spans_R2[:, 1] - spans_R2[:, 0]
    used_R = busy_R & (seconds_R > 1e-6)
    return counts[used_R], seconds_R[used_R]


class _Load:
    """A sum of boxes over time, and its integral between any two instants."""

    def __init__(self, spans_V2: Array, height_V: Array) -> None:
        times = np.concatenate([spans_V2[:, 0], spans_V2[:, 1]])
        changes = np.concatenate([height_V, -height_V])
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        level = np.cumsum(changes[order])[:-1]
        self._integral = np.concatenate([[0.0], np.cumsum(level * np.diff(self._times))])

    def inside(self, spans_V2: Array) -> Array:
        """The integral over each span."""
        ends = np.interp(spans_V2, self._times, self._integral)
        return ends[:, 1] - ends[:, 0]


def _runs(spans: Iterable[SpanRow]) -> list[list[SpanRow]]:
    """Spans in the engine, one list for each uninterrupted stay."""
    runs: list[list[SpanRow]] = []
    inside = False
    for span in spans:
        engaged = span.stage in _IN_ENGINE
        if engaged and not inside:
            runs.append([])
        if engaged:
            runs[-1].append(span)
        inside = engaged
    return runs


def _hull(run: Sequence[SpanRow], *stages: Stage) -> tuple[float, float]:
    own = [s for s in run if s.stage in stages]
    if not own:
        return run[-1].end, run[-1].end
    return min(s.start for s in own), max(s.end for s in own)
