"""Steps that the tests of the SGLang adapter take again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

import tiny_llama as tiny
from engine.sglang.sglang_double import Double, connected
from muster import clock
from muster.engine.port import CachePolicy, InFlight
from muster.engine.sglang.replica import SglangReplica
from muster.types import Completion, Ints, Publication, Sampling, Session

SESSION = Session(id="s1")
Body = Callable[[SglangReplica, Double], Awaitable[None]]


def check(folder: Path, body: Body, **options: Any) -> None:
    async def connecting() -> None:
        async with connected(folder, **options) as (replica, double):
            await body(replica, double)

    clock.run(connecting())


def prompt(seed: int, length: int = 40) -> Ints:
    return np.random.default_rng(seed).integers(3, tiny.CONFIG.vocab_size, length).astype(np.int32)


def sampling(max_tokens: int = 8, **more: Any) -> Sampling:
    return Sampling(temperature=0.7, max_tokens=max_tokens, seed=1, **more)


async def begun(replica: SglangReplica, double: Double, max_tokens: int = 300) -> asyncio.Task[Completion]:
    """A request that has sampled some of its tokens."""
    goal = double.scheduler.sampled_tokens + 5
    request = asyncio.create_task(replica.generate(prompt(1), sampling(max_tokens), SESSION))
    while double.scheduler.sampled_tokens < goal:
        await clock.sleep(0.002)
    return request


async def publish(
    replica: SglangReplica,
    publication: Publication,
    in_flight: InFlight = InFlight.HOLD,
    cache: CachePolicy = CachePolicy.RECOMPUTE,
) -> None:
    await replica.stage(publication)
    await replica.pause(in_flight)
    await replica.commit(publication.version, cache)
    await replica.resume()


def heard(double: Double, path: str) -> list[dict[str, Any]]:
    return [body for at, body, _ in double.heard if at == path]


def off(version: int, tokens: Ints, completion: Completion) -> Any:
    """Difference of each sampled token's log-probability from that under the weights of `version`."""
    sequence = np.concatenate([tokens, completion.tokens_T])
    return np.abs(tiny.reference(version, sequence, 0.7)[len(tokens) :] - completion.logprobs_T)
