"""The publisher: new weights reach every replica, or every replica stays on one definite version.

    stage on all (while serving) ─► on each: pause ─► commit ─► digest and canary ─► resume
                                    a call that failed is made again: each is idempotent per version

Law: a version counts only when the digest of what the engine holds equals the digest that was published, and
fixed tokens score alike in engine and trainer. An answer of 200 and a version label prove nothing. This file
knows no transport and no trainer: it takes a publication and a reference, and returns one record per replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from muster import clock
from muster.engine.port import CachePolicy, InFlight, Replica
from muster.errors import EngineError, PublicationError
from muster.types import Floats, Ints, Publication, PublicationRecord

_T = TypeVar("_T")


class PublisherConfig(BaseModel):
    """How new weights reach the engines."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    in_flight: InFlight = Field(default=InFlight.HOLD, description="what the pause does to requests in flight")
    cache: CachePolicy = Field(default=CachePolicy.KEEP, description="what the commit does to their cache")
    stage_timeout_s: float = Field(default=120.0, gt=0, description="deadline for fetching and decoding")
    commit_timeout_s: float = Field(default=60.0, gt=0, description="deadline for pause, commit, checks and resume")
    attempts: int = Field(default=3, ge=1, description="tries of one call to a replica; its answer may have been lost")
    retry_pause_s: float = Field(default=0.5, ge=0, description="between two tries of a call")
    canary_tolerance: float = Field(
        default=0.1, gt=0, description="largest mean |difference| of canary log-probabilities, engine against trainer"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """Fixed tokens and what the trainer says of them under the weights being published."""

    tokens: Ints
    temperature: float
    logprobs_T: Floats


class Publisher:
    """Publishes to all replicas. Publishing the same version again changes nothing."""

    def __init__(self, replicas: Sequence[Replica], config: PublisherConfig) -> None:
        self._replicas = tuple(replicas)
        self._config = config

    async def publish(
        self, publication: Publication, canary: Canary, *, trained_at: float, export_s: float
    ) -> list[PublicationRecord]:
        """Raises `PublicationError`; a failure to stage leaves every replica on its old version.

        trained_at: when the trainer's step ended; `publish_latency_s` counts from there.
        """
        staged_at = clock.now()
        await self._stage(publication)
        stage_s = clock.now() - staged_at
        return await _all([self._commit(r, publication, canary, trained_at, export_s, stage_s) for r in self._replicas])

    async def _stage(self, publication: Publication) -> None:
        number = publication.version.number
        try:
            async with clock.timeout(self._config.stage_timeout_s):
                await _all([self._insist(lambda r=r: r.stage(publication)) for r in self._replicas])
        except TimeoutError as error:
            limit = self._config.stage_timeout_s
            raise PublicationError(f"version {number} was not staged within {limit:g} s") from error

    async def _commit(
        self,
        replica: Replica,
        publication: Publication,
        canary: Canary,
        trained_at: float,
        export_s: float,
        stage_s: float,
    ) -> PublicationRecord:
        version = publication.version
        paused_at = clock.now()
        try:
            async with clock.timeout(self._config.commit_timeout_s):
                pause = await self._insist(lambda: replica.pause(self._config.in_flight))
                held = await self._insist(lambda: replica.commit(version, self._config.cache))
                commit_s = clock.now() - paused_at
                difference = await self._check(replica, canary)
                await self._insist(replica.resume)
        except TimeoutError as error:
            limit = self._config.commit_timeout_s
            raise PublicationError(
                f"{replica.name}: version {version.number} was not committed within {limit:g} s"
            ) from error
        if held != version:
            raise PublicationError(f"{replica.name}: holds {held}, published was {version}")
        now = clock.now()
        return PublicationRecord(
            version=version,
            replica=replica.name,
            export_s=export_s,
            stage_s=stage_s,
            commit_s=commit_s,
            pause_s=now - paused_at,
            latency_s=now - trained_at,
            size_bytes=publication.size_bytes,
            digest_equal=True,
            canary_difference=difference,
            held=pause.held,
            aborted=pause.aborted,
            finished=pause.finished,
        )

    async def _check(self, replica: Replica, canary: Canary) -> float:
        """Mean |difference| of the canary's log-probabilities. Raises when it is beyond tolerance."""
        scores = await replica.score(canary.tokens, temperature=canary.temperature)
        difference = float(np.abs(scores.logprobs_T[1:] - canary.logprobs_T[1:]).mean())
        if not difference <= self._config.canary_tolerance:
            raise PublicationError(
                f"{replica.name}: the canary differs by {difference:.3g} on average, "
                f"tolerance {self._config.canary_tolerance:g}: the engine does not hold what was trained"
            )
        return difference

    async def _insist(self, call: Callable[[], Awaitable[_T]]) -> _T:
        for _ in range(self._config.attempts - 1):
            try:
                return await call()
            except EngineError:
                await clock.sleep(self._config.retry_pause_s)
        return await call()


async def _all(work: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """The results, or the first error once all have ended: a retry must not meet what is still under way."""
    ended = await asyncio.gather(*work, return_exceptions=True)
    results: list[_T] = []
    for result in ended:
        if isinstance(result, BaseException):
            raise result
        results.append(result)
    return results
