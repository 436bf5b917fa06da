"""`muster bench engine`: the embedded engine against `transformers`' `generate`, in one run.

Law: the same prompts, the same number of new tokens, the same weights in bf16 and the same threads on both sides;
the sides take turns, so that a busy moment hits both. Every time covers everything, prompts included. Two workloads:

    grouped    what a rollout sends: siblings with one prompt each group, and few-shot turns common to all groups
    distinct   prompts that share nothing: what the engine is worth without its shared prefixes

    for each repeat, for each number of streams: transformers, engine on grouped prompts, engine on distinct ones
    then: log-probabilities of the engine in fp32 against a forward pass of transformers in fp32

`generate` does not share prefixes: its time is the same for both workloads, and is measured once.
"""
# torch and transformers leave much of what they offer without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from muster import clock
from muster.engine.config import EmbeddedEngineConfig
from muster.engine.embedded.batching import BatchingEngine
from muster.engine.embedded.packed_weights import PackedWeights, load
from muster.lab.result import BenchResult, Target, Value
from muster.model.weights import resolve
from muster.types import Completion, Ints, Sampling, Session

PROMPT_TOKENS = 256
NEW_TOKENS = 64
GROUP = 16
TEMPERATURE = 0.7
SPEEDUPS = {16: 1.6, 32: 1.9, 64: 2.3}
"""Ratio of tokens per second by number of streams, on grouped prompts."""
LOGPROB_DIFFERENCE = 1e-4

Side = Callable[[Sequence[Ints]], float]


def run_engine_bench(*, model: str, streams: Sequence[int], repeats: int) -> BenchResult:
    """Measure. model: as `model.weights.resolve` takes it. Raises `ModelError`."""
    folder = resolve(model)
    weights = load(folder, torch.bfloat16)
    transformers_logging.disable_progress_bar()
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    vocabulary = weights.config.vocab_size
    rng = np.random.default_rng(0)
    sides: dict[str, Side] = {
        "transformers": lambda prompts: _generate(reference, prompts),
        "grouped": lambda prompts: _serve(weights, prompts),
        "distinct": lambda prompts: _serve(weights, prompts),
    }
    seconds: dict[tuple[int, str], list[float]] = {(n, s): [] for n in streams for s in sides}
    for side in sides.values():  # warm up
        side(_prompts(rng, 1, vocabulary, grouped=False))
    for _ in range(repeats):
        for n in streams:
            for name, side in sides.items():
                seconds[n, name].append(side(_prompts(rng, n, vocabulary, grouped=name != "distinct")))
    rows = [_row(n, {name: seconds[n, name] for name in sides}) for n in streams]
    difference = _logprob_difference(folder, rng)
    targets = [
        Target(name=f"speedup_{n}", value=float(row["ratio"]), operator=">=", threshold=SPEEDUPS[n])
        for n, row in zip(streams, rows, strict=True)
        if n in SPEEDUPS
    ]
    targets.append(
        Target(name="fp32_logprob_difference", value=difference, operator="<=", threshold=LOGPROB_DIFFERENCE)
    )
    return BenchResult(name="engine", rows=rows, targets=targets, notes=_notes(model, repeats))


def _row(streams: int, seconds: dict[str, list[float]]) -> dict[str, Value]:
    """Medians over the repeats; the spread is that of the ratio."""
    tokens = streams * NEW_TOKENS
    ratios = [a / b for a, b in zip(seconds["transformers"], seconds["grouped"], strict=True)]
    rates = {f"{name}_tokens_per_s": tokens / median(times) for name, times in seconds.items()}
    return {
        "streams": streams,
        **rates,
        "ratio": median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "distinct_ratio": median(seconds["transformers"]) / median(seconds["distinct"]),
    }


def _prompts(rng: np.random.Generator, streams: int, vocabulary: int, *, grouped: bool) -> list[Ints]:
    """Distinct prompts, or groups of siblings with one prompt each and a common beginning of most of it."""
    prompts = rng.integers(3, vocabulary, (streams, PROMPT_TOKENS)).astype(np.int32)
    if grouped:
        prompts[:, : PROMPT_TOKENS * 3 // 4] = prompts[0, : PROMPT_TOKENS * 3 // 4]
        leaders = np.arange(streams) // GROUP * GROUP
        prompts = prompts[leaders]
    return list(prompts)


def _generate(model: torch.nn.Module, prompts: Sequence[Ints]) -> float:
    ids = torch.from_numpy(np.stack(prompts).astype(np.int64))
    started = clock.now()
    with torch.inference_mode():
        out = model.generate(  # pyright: ignore[reportCallIssue]
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=0,
            top_p=1.0,
            min_new_tokens=NEW_TOKENS,
            max_new_tokens=NEW_TOKENS,
        )
    assert out.shape[1] == PROMPT_TOKENS + NEW_TOKENS
    return clock.now() - started


def _serve(weights: PackedWeights, prompts: Sequence[Ints]) -> float:
    engine = _engine(weights, len(prompts), "bfloat16")
    started = clock.now()
    done = _complete(engine, prompts)
    assert sum(len(c.tokens_T) for c in done) == len(prompts) * NEW_TOKENS
    return clock.now() - started


def _engine(weights: PackedWeights, streams: int, dtype: str) -> BatchingEngine:
    length = PROMPT_TOKENS + NEW_TOKENS + 1
    config = EmbeddedEngineConfig.model_validate(
        {
            "dtype": dtype,
            "max_streams": streams,
            "max_model_len": length,
            "kv_capacity_tokens": 2 * max(streams, 4) * length,
        }
    )
    return BatchingEngine(config, weights, name="bench", version=0, started_at=clock.now())


def _complete(engine: BatchingEngine, prompts: Sequence[Ints]) -> list[Completion]:
    done: dict[str, Completion] = {}
    for index, prompt in enumerate(prompts):
        sampling = Sampling(temperature=TEMPERATURE, max_tokens=NEW_TOKENS, seed=index)
        name = str(index)
        engine.submit(name, prompt, sampling, Session(id=name), lambda c, n=name: done.update({n: c}))
    while engine.busy:
        engine.step()
    return [done[str(index)] for index in range(len(prompts))]


def _logprob_difference(folder: Path, rng: np.random.Generator) -> float:
    """Largest difference over the sampled tokens of two groups, engine in fp32 against transformers in fp32."""
    weights = load(folder, torch.float32)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts = _prompts(rng, 4, weights.config.vocab_size, grouped=False)
    prompts += [prompts[0]]
    worst = 0.0
    for prompt, completion in zip(prompts, _complete(_engine(weights, 5, "float32"), prompts), strict=True):
        ids = torch.from_numpy(np.concatenate([prompt, completion.tokens_T]).astype(np.int64))
        with torch.inference_mode():
            logprobs = (model(ids[None]).logits[0] / TEMPERATURE).log_softmax(-1)
        sampled = logprobs[len(prompt) - 1 : -1].gather(1, ids[len(prompt) :, None])[:, 0].numpy()
        worst = max(worst, float(np.abs(sampled - completion.logprobs_T).max()))
    return worst


def _notes(model: str, repeats: int) -> dict[str, Value]:
    return {
        "model": model,
        "repeats": repeats,
        "prompt_tokens": PROMPT_TOKENS,
        "new_tokens": NEW_TOKENS,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
    }
