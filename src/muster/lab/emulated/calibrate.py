"""Fits the constants of `EngineTiming` to a live server, through the port alone.

Law: a step's time is linear in its work, so a run's duration is linear in the work of all its steps. A few runs of
chosen shapes are timed; the emulator itself says what work each was; least squares says what each unit of work costs.

    shapes ─► time each on the server ─► seconds ┐
         └──► run each in an EmulatedCore ─► Work ┴► non-negative least squares, relative errors ─► preset

What the shapes must contain to tell the constants apart: prompts of several lengths alone (prefill, pairs), batches of
several sizes (row), long contexts beside short ones (context), and a share of time outside the engine, which is fitted
as a constant a run and left out of the preset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt

from muster import clock
from muster.engine.config import EmulatedEngineConfig
from muster.engine.port import Engine, EngineStatistics
from muster.engine.timing import EngineTiming, Work
from muster.errors import EngineError, UserError
from muster.lab.emulated.core import EmulatedCore
from muster.lab.faults import INITIAL
from muster.types import Completion, Ints, Sampling, Session

_IDS = (16, 1000)
"""Token ids of the prompts: every vocabulary has these."""
_NEW_TOKENS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`requests` sent at once, each with a prompt of its own of `prompt` tokens and `new` tokens to sample.

    warm: the prompts are in the server's cache, so that decoding at long contexts is not lost in their prefill.
    """

    requests: int
    prompt: int
    new: int
    warm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Time of a run of `shape`. `new`: what each request really sampled; `shape.warm`: what was really cached."""

    shape: Shape
    new: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The fitted preset. Errors are relative, of the predicted duration of each run, in the order of `observations`."""

    config: EmulatedEngineConfig
    overhead_s: float  # of a run, outside the engine
    observations: tuple[Observation, ...]
    errors: tuple[float, ...]

    @property
    def typical_error(self) -> float:
        return median(abs(error) for error in self.errors)

    @property
    def worst_error(self) -> float:
        return max(abs(error) for error in self.errors)


async def calibrate(
    engine: Engine,
    *,
    longest: int,
    step_tokens: int = 2048,
    repeats: int = 3,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> Calibration:
    """Measure and fit. Batch size and cache are what the server's statistics say.

    longest: tokens of the longest prompt to try. step_tokens: tokens of a step of the server, its chunked prefill.
    Raises `EngineError` when the server fails or its times determine no model.
    """
    limits = _limits(await engine.statistics(), longest, step_tokens)
    rng = np.random.default_rng(seed)
    await _run(engine, Shape(requests=1, prompt=16, new=4), rng)  # the first request of a server warms it up
    observations: list[Observation] = []
    for shape in shapes(limits.max_running, longest, limits.kv_capacity_tokens):
        runs = [await _run(engine, shape, rng) for _ in range(repeats)]
        observations.append(sorted(runs, key=lambda run: run.seconds)[len(runs) // 2])
        say(f"{shape.requests} x ({shape.prompt} + {shape.new} tokens): {observations[-1].seconds:.3f} s")
    return fit(observations, limits)


def shapes(max_running: int, longest: int, kv_tokens: int) -> list[Shape]:
    """Shapes to measure: prompts alone, batches with short prompts, one batch with long ones."""
    short = min(32, longest)
    lengths = sorted({max(1, longest * share // 16) for share in (1, 4, 8, 16)})
    sizes = sorted({min(max_running, size) for size in (1, 2, 4, 8, 16, 32, 64, 128, 256)})
    long_batch = max(1, min(max_running // 2, 16, kv_tokens // (2 * (longest + _NEW_TOKENS))))
    alone = [Shape(requests=1, prompt=length, new=1) for length in lengths]
    batches = [Shape(requests=size, prompt=short, new=_NEW_TOKENS) for size in sizes]
    return [*alone, *batches, Shape(requests=long_batch, prompt=longest, new=_NEW_TOKENS, warm=True)]


def fit(observations: Sequence[Observation], limits: EmulatedEngineConfig) -> Calibration:
    """The timing that explains the observations best. Raises `EngineError` when they determine none."""
    work = [work_of(observation, limits) for observation in observations]
    counts_RC = np.array([[w.steps, w.rows, w.context, w.prefill, w.pairs, 1.0] for w in work], np.float64)
    seconds_R = np.array([o.seconds for o in observations], np.float64)
    costs_C = non_negative(counts_RC / seconds_R[:, None], np.ones(len(seconds_R)))
    step_s, row_s, context_s, prefill_s, pair_s, overhead_s = costs_C.tolist()
    if step_s <= 0 or prefill_s <= 0:
        raise EngineError("calibration: the measured times do not depend on the work; is the server busy otherwise?")
    timing = EngineTiming(step_s=step_s, row_s=row_s, context_s=context_s, prefill_s=prefill_s, pair_s=pair_s)
    return Calibration(
        config=limits.model_copy(update={"timing": timing}),
        overhead_s=overhead_s,
        observations=tuple(observations),
        errors=tuple((counts_RC @ costs_C / seconds_R - 1.0).tolist()),
    )


def work_of(observation: Observation, limits: EmulatedEngineConfig) -> Work:
    """Work of an engine with these limits in such a run. Which steps it takes does not depend on the timing."""
    core = EmulatedCore(limits, name="calibration", version=INITIAL, now=0.0)
    rng = np.random.default_rng(0)
    prompts = [_prompt(rng, observation.shape.prompt) for _ in observation.new]
    if observation.shape.warm:
        _play(core, prompts, [1] * len(prompts))
        core.work = Work()
    _play(core, prompts, observation.new)
    return core.work


def _play(core: EmulatedCore, prompts: Sequence[Ints], new: Sequence[int]) -> None:
    for index, (tokens, count) in enumerate(zip(prompts, new, strict=True)):
        core.submit(str(index), tokens, Sampling(max_tokens=count), Session(id=""), _ignore, core.now)
        if index == 0:  # an idle server takes up the first request before the others arrive
            core.begin(core.now)
            core.finish()
    while core.begin(core.now):
        core.finish()


def _limits(statistics: EngineStatistics, longest: int, step_tokens: int) -> EmulatedEngineConfig:
    """Limits of the server, as far as they are known beside its timing."""
    longest_sequence = longest + _NEW_TOKENS + 1
    if statistics.kv_capacity_tokens < longest_sequence + 32:
        raise UserError(f"longest = {longest}: the server's cache holds {statistics.kv_capacity_tokens} tokens")
    return EmulatedEngineConfig(
        description="calibrated",
        max_running=statistics.capacity,
        max_step_tokens=max(step_tokens, statistics.capacity),
        max_model_len=longest_sequence,
        kv_capacity_tokens=statistics.kv_capacity_tokens,
    )


async def _run(engine: Engine, shape: Shape, rng: np.random.Generator) -> Observation:
    """Time one run, from the first request sent to the last answer."""
    prompts = [_prompt(rng, shape.prompt) for _ in range(shape.requests)]
    if shape.warm:
        await _ask(engine, prompts, 1)
    started = clock.now()
    completions = await _ask(engine, prompts, shape.new)
    seconds = clock.now() - started
    warm = shape.warm and all(c.cached_tokens > shape.prompt // 2 for c in completions)
    return Observation(
        shape=replace(shape, warm=warm), new=tuple(len(c.tokens_T) for c in completions), seconds=seconds
    )


async def _ask(engine: Engine, prompts: Sequence[Ints], new: int) -> list[Completion]:
    sampling = Sampling(temperature=1.0, max_tokens=new)
    calls = [engine.generate(p, sampling, Session(id=f"calibrate-{i}")) for i, p in enumerate(prompts)]
    return await asyncio.gather(*calls)


def non_negative(counts_RC: npt.NDArray[np.float64], target_R: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Least squares without negative costs: a constant that comes out negative is dropped, the worst first."""
    used = [c for c in range(counts_RC.shape[1]) if counts_RC[:, c].any()]
    costs_C = np.zeros(counts_RC.shape[1])
    while used:
        scale: npt.NDArray[np.float64] = np.linalg.norm(counts_RC[:, used], axis=0)
        solution = np.linalg.lstsq(counts_RC[:, used] / scale, target_R, rcond=None)[0]
        if (solution >= 0).all():
            costs_C[used] = solution / scale
            break
        used.pop(int(solution.argmin()))
    return costs_C


def _prompt(rng: np.random.Generator, length: int) -> Ints:
    return rng.integers(*_IDS, length).astype(np.int32)


def _ignore(completion: Completion) -> None:
    pass
