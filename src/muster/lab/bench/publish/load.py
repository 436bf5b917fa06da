"""Requests that run on while weights are published, and how fast their tokens come.

    under_load(replica, streams) ─► each stream: a request, and another one when it ends ─► cancelled
                      └─► statistics, every POLL_S ─► TokenMeter ─► tokens a second between any two moments

Law: the load is the same each time: prompts, seeds and lengths are, and it begins anew for every publication. The meter
reads the replica's own counter, and between two readings it counts evenly: decoding takes some 50 ms a step, and a
window shorter than a few steps says little.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import numpy as np

from muster import clock
from muster.engine.port import Replica
from muster.types import Ints, Sampling, Session

POLL_S = 0.05
PROMPT_TOKENS = 32
TEMPERATURE = 1.0


class TokenMeter:
    """Tokens that a replica had sampled at a moment."""

    def __init__(self) -> None:
        self._times_s: list[float] = []
        self._tokens: list[int] = []

    def read(self, at_s: float, tokens: int) -> None:
        self._times_s.append(at_s)
        self._tokens.append(tokens)

    def rate(self, start_s: float, end_s: float) -> float:
        """Tokens a second in between; both moments lie within what was read.

        Example: `meter.rate(0.0, 2.0)` is 50 after `meter.read(0.0, 0)` and `meter.read(4.0, 200)`.
        """
        assert self._times_s[0] <= start_s < end_s <= self._times_s[-1], "measured within what was read"
        before, after = np.interp([start_s, end_s], self._times_s, self._tokens)
        return float(after - before) / (end_s - start_s)


@asynccontextmanager
async def under_load(replica: Replica, *, streams: int, max_model_len: int) -> AsyncGenerator[TokenMeter]:
    """`streams` requests are decoding when this yields, and go on until it ends. Raises what a request raises."""
    meter = TokenMeter()
    async with asyncio.TaskGroup() as group:
        load = [group.create_task(_stream(replica, index, max_model_len)) for index in range(streams)]
        try:
            await _all_decoding(replica, streams)
            await _read(replica, meter)
            watch = group.create_task(_watch(replica, meter))
            yield meter
            watch.cancel()
            await _read(replica, meter)
        finally:
            for task in load:
                task.cancel()


async def _stream(replica: Replica, index: int, max_model_len: int) -> None:
    rng = np.random.default_rng(index)
    for turn in itertools.count():
        prompt: Ints = rng.integers(3, 60, PROMPT_TOKENS).astype(np.int32)
        sampling = Sampling(temperature=TEMPERATURE, max_tokens=max_model_len - PROMPT_TOKENS - 1, seed=index)
        await replica.generate(prompt, sampling, Session(id=f"load{index}/{turn}"))


async def _all_decoding(replica: Replica, streams: int) -> None:
    """Until each has sampled some tokens: prompts are no part of what is measured."""
    sampled = (await replica.statistics()).generated_tokens
    while True:
        statistics = await replica.statistics()
        if statistics.running >= streams and statistics.generated_tokens >= sampled + 4 * streams:
            return
        await clock.sleep(POLL_S)


async def _watch(replica: Replica, meter: TokenMeter) -> None:
    while True:
        await _read(replica, meter)
        await clock.sleep(POLL_S)


async def _read(replica: Replica, meter: TokenMeter) -> None:
    asked = clock.now()
    statistics = await replica.statistics()
    meter.read((asked + clock.now()) / 2, statistics.generated_tokens)
