"""The publisher: new weights reach every replica, or every replica stays on one definite version.

    stage on all (while serving) ─► on each: pause ─► commit ─► digest ─► canary ─► resume ─► record
         ├─ any failed: none commits             └─ failed: named, and not resumed
         └─ has proven this version before, and still does: left in peace
                                    a call that failed is made again: each is idempotent per version

Law: a version counts only when the digest of what the engine holds equals the digest that was published, and fixed
tokens score alike in engine and trainer; until both are so the replica serves nothing. An answer of 200 and a version
label prove nothing. This file knows no transport and no trainer: it takes a publication and a reference, and returns
one record per replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from muster import clock
from muster.engine.port import CachePolicy, Pause, Replica, Scores, Staged
from muster.errors import BoundaryError, ConfigError, EngineError, PublicationError
from muster.publish.config import PublisherConfig
from muster.types import Floats, Ints, Publication, PublicationRecord, Version

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """Fixed tokens and what the trainer says of them under the weights being published."""

    tokens: Ints
    temperature: float
    logprobs_T: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivery:
    """One publication on its way: the same for every replica."""

    publication: Publication
    canary: Canary
    trained_at: float
    export_s: float

    @property
    def version(self) -> Version:
        return self.publication.version


class Publisher:
    """Publishes to all replicas. Publishing the same version again reaches those that do not hold it, and no other.

    Example: `records = await Publisher(replicas, PublisherConfig()).publish(p, canary, trained_at=t, export_s=0.1)`
    """

    def __init__(self, replicas: Sequence[Replica], config: PublisherConfig) -> None:
        """Raises `ConfigError` when a replica cannot publish as `config` says, with its reason."""
        self._replicas = tuple(replicas)
        self._config = config
        self._proven: dict[str, PublicationRecord] = {}  # replica -> of the last version that it proved
        for replica in self._replicas:
            reason = replica.supports(config.in_flight, config.cache)
            if reason is not None:
                wanted = f'publish.in_flight = "{config.in_flight}" with publish.cache = "{config.cache}"'
                raise ConfigError(f"{wanted}: {replica.name} cannot: {reason}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(r.name for r in self._replicas)

    async def answering(self) -> tuple[str, ...]:
        """The replicas that say how they are, whatever they hold."""

        async def answers(replica: Replica) -> bool:
            try:
                async with clock.timeout(self._config.commit_timeout_s):
                    await replica.statistics()
            except (EngineError, TimeoutError):
                return False
            return True

        found = await asyncio.gather(*(answers(r) for r in self._replicas))
        return tuple(r.name for r, there in zip(self._replicas, found, strict=True) if there)

    async def publish(
        self,
        publication: Publication,
        canary: Canary,
        *,
        trained_at: float,
        export_s: float,
        without: Collection[str] = (),
    ) -> list[PublicationRecord]:
        """Raises `PublicationError`; a failure to stage leaves every replica on its old version.

        trained_at: when the trainer's step ended; `publish_latency_s` counts from there. without: replicas that are
        passed over. The error's evidence names those that failed, as `replicas`.
        """
        replicas = [r for r in self._replicas if r.name not in without]
        assert replicas, "a version is not published to nobody"
        delivery = _Delivery(publication=publication, canary=canary, trained_at=trained_at, export_s=export_s)
        holding = await _on_each(replicas, lambda r: self._still_proves(r, delivery))
        others = [r for r, holds in zip(replicas, holding, strict=True) if not holds]
        staged = await _on_each(others, lambda r: self._stage(r, publication))
        costs = {r.name: cost for r, cost in zip(others, staged, strict=True)}
        await _on_each(others, lambda r: self._commit(r, delivery, *costs[r.name]))
        return [self._proven[r.name] for r in replicas]

    async def _still_proves(self, replica: Replica, delivery: _Delivery) -> bool:
        """Whether it has proven this version before and serves it to this day: a retry for the sake of others need not
        pause it again.
        """
        before = self._proven.get(replica.name)
        if before is None or before.version != delivery.version:
            return False
        canary = delivery.canary
        try:
            async with clock.timeout(self._config.commit_timeout_s):
                scores = await replica.score(canary.tokens, temperature=canary.temperature)
                if scores.version != delivery.version or not self._agrees(scores, canary):
                    return False
                await replica.resume()
        except (EngineError, TimeoutError):
            return False
        return True

    async def _stage(self, replica: Replica, publication: Publication) -> tuple[Staged, float]:
        """Stage at one replica: what it cost, and how long it took with all its tries."""
        began, limit = clock.now(), self._config.stage_timeout_s
        try:
            async with clock.timeout(limit):
                staged = await self._retry(lambda: replica.stage(publication))
        except TimeoutError as error:
            number = publication.version.number
            raise PublicationError(f"{replica.name}: version {number} was not staged within {limit:g} s") from error
        return staged, clock.now() - began

    async def _commit(self, replica: Replica, delivery: _Delivery, staged: Staged, stage_s: float) -> None:
        paused_at = clock.now()
        limit = self._config.commit_timeout_s
        try:
            async with clock.timeout(limit):
                pause = await self._retry(lambda: replica.pause(self._config.in_flight))
                still_at = clock.now()
                held = await self._retry(lambda: replica.commit(delivery.version, self._config.cache))
                commit_s = clock.now() - still_at
                if held != delivery.version:
                    raise PublicationError(f"{replica.name}: holds {held}, published was {delivery.version}")
                difference = await self._check(replica, delivery.canary)
                await self._retry(replica.resume)
        except TimeoutError as error:
            number = delivery.version.number
            raise PublicationError(f"{replica.name}: version {number} was not committed within {limit:g} s") from error
        now = clock.now()
        self._proven[replica.name] = PublicationRecord(
            version=delivery.version,
            replica=replica.name,
            export_s=delivery.export_s,
            stage_s=stage_s,
            transfer_s=staged.transfer_s,
            commit_s=commit_s,
            pause_s=now - paused_at,
            latency_s=now - delivery.trained_at,
            size_bytes=_travelled(delivery.publication, staged),
            digest_equal=True,
            canary_difference=difference,
            held=pause.held,
            aborted=pause.aborted,
            finished=pause.finished,
            recomputed_tokens=self._recomputed(pause),
        )

    def _recomputed(self, pause: Pause) -> int:
        again = self._config.cache in (CachePolicy.RECOMPUTE, CachePolicy.FLUSH)
        return pause.held_tokens if again else 0

    async def _check(self, replica: Replica, canary: Canary) -> float:
        """Mean |difference| of the canary's log-probabilities. Raises when it is beyond tolerance."""
        scores = await self._retry(lambda: replica.score(canary.tokens, temperature=canary.temperature))
        difference = _difference(scores, canary)
        if not self._agrees(scores, canary):
            raise PublicationError(
                f"{replica.name}: the canary differs by {difference:.3g} on average, "
                f"tolerance {self._config.canary_tolerance:g}: the engine does not hold what was trained"
            )
        return difference

    def _agrees(self, scores: Scores, canary: Canary) -> bool:
        return _difference(scores, canary) <= self._config.canary_tolerance

    async def _retry(self, call: Callable[[], Awaitable[_T]]) -> _T:
        for _ in range(self._config.attempts - 1):
            try:
                return await call()
            except EngineError:
                await clock.sleep(self._config.retry_pause_s)
        return await call()


def _travelled(publication: Publication, staged: Staged) -> int:
    """Bytes that a replica took: what it fetched, or the file in memory that it maps."""
    return publication.size_bytes if publication.transport == "memory" else staged.size_bytes


def _difference(scores: Scores, canary: Canary) -> float:
    """Mean |difference|, in nats. The first token has none before it. Infinite when not all tokens were scored."""
    if scores.logprobs_T.shape != canary.logprobs_T.shape:
        return float("inf")
    return float(np.abs(scores.logprobs_T[1:] - canary.logprobs_T[1:]).mean())


async def _on_each(replicas: Sequence[Replica], act: Callable[[Replica], Coroutine[Any, Any, _T]]) -> list[_T]:
    """Act on each replica. Results, or an error that names all that failed, once all have ended: a retry must not meet
    what is still under way.
    """
    ended = await asyncio.gather(*(act(r) for r in replicas), return_exceptions=True)
    results: list[_T] = []
    failed: dict[str, BoundaryError] = {}
    for replica, result in zip(replicas, ended, strict=True):
        if isinstance(result, BoundaryError):
            failed[replica.name] = result
        elif isinstance(result, BaseException):
            raise result
        else:
            results.append(result)
    if failed:
        error = next(iter(failed.values()))
        raise PublicationError(str(error), {"replicas": list(failed)}) from error
    return results
