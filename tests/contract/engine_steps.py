"""Steps that the tests of the engine's contract take again and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from contract.engine_rigs import VOCABULARY, Rig, T
from muster import clock
from muster.engine.config import EmbeddedEngineConfig
from muster.engine.port import CachePolicy, InFlight, Pause, Replica
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

Body = Callable[[Rig], Awaitable[None]]
Check = Callable[[Body], None]

CONFIG = EmbeddedEngineConfig(
    dtype="float32", max_streams=8, max_model_len=1024, kv_capacity_tokens=24 * 1024, threads=1, request_timeout_s=60
)


def prompt(seed: int, length: int = 100) -> Ints:
    return np.random.default_rng(seed).integers(3, VOCABULARY, length).astype(np.int32)


def sampling(max_tokens: int = 10, **more: Any) -> Sampling:
    return Sampling(temperature=T, max_tokens=max_tokens, seed=1, **more)


def session(name: str) -> Session:
    return Session(id=name)


async def running(replica: Replica, count: int) -> None:
    """Wait until `count` requests run and have been decoding for a while."""
    while (await replica.statistics()).running != count:
        await clock.sleep(0.01)
    await clock.sleep(0.1)


def supported(rig: Rig, in_flight: InFlight, cache: CachePolicy) -> None:
    """Skip the test where the replica says, with a reason, that it cannot publish so."""
    reason = rig.replica.supports(in_flight, cache)
    if reason is not None:
        assert reason.strip(), "whoever is refused must learn why"
        pytest.skip(reason)


async def publish(
    rig: Rig, in_flight: InFlight, cache: CachePolicy = CachePolicy.KEEP, publication: Publication | None = None
) -> tuple[Pause, Version]:
    """Publish the rig's next version, or this one."""
    publication = publication or rig.next_publication()
    await rig.replica.stage(publication)
    pause = await rig.replica.pause(in_flight)
    held = await rig.replica.commit(publication.version, cache)
    await rig.replica.resume()
    assert held == publication.version
    return pause, held


def whole(rig: Rig, tokens: int) -> int:
    """Number of so many tokens that the rig's prefix cache can serve."""
    return tokens // rig.block_tokens * rig.block_tokens


def agrees(rig: Rig, tokens: Ints, completion: Completion, version: int) -> None:
    """The completion's log-probabilities are those of `version` for the whole sequence, where it sampled."""
    sequence = np.concatenate([tokens, completion.tokens_T])
    expected = rig.reference(version, sequence)[len(tokens) :]
    made = completion.versions_T == version
    np.testing.assert_allclose(completion.logprobs_T[made], expected[made], atol=1e-4)
