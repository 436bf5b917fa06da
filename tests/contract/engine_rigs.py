"""Replicas of every kind for the engine's contract, each with the truth about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

import tiny_llama as tiny
from muster.engine.emulated import replies
from muster.engine.emulated.config import EmulatedEngineConfig
from muster.engine.emulated.replica import INITIAL
from muster.engine.emulated.timing import EngineTiming
from muster.engine.fleet import Fleet
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Replica
from muster.engine.router import RouterConfig
from muster.sim.fake_engine import FakeReplica, logprobs_of
from muster.types import Floats, Ints, Publication, Session, Version

T = 0.7
VOCABULARY = tiny.CONFIG.vocab_size


class Rig(Protocol):
    """A replica, and the truth about it."""

    replica: Replica

    def next_publication(self) -> Publication: ...

    def reference(self, version: int, tokens: Ints) -> Floats: ...


class FakeRig:
    def __init__(self) -> None:
        self._versions = {0: Version(number=0, digest="digest-0")}
        self.replica = FakeReplica("fake", policy=self._reply, version=self._versions[0])

    def next_publication(self) -> Publication:
        version = Version(number=len(self._versions), digest=f"digest-{len(self._versions)}")
        self._versions[version.number] = version
        return Publication(version=version, transport="memory", location="nowhere", size_bytes=0, dtype="float32")

    def reference(self, version: int, tokens: Ints) -> Floats:
        return logprobs_of(tokens, self._versions[version], T)

    def _reply(self, tokens: Ints, session: Session, version: Version) -> list[int]:
        return np.random.default_rng(int(tokens.sum())).integers(3, VOCABULARY, 1000).tolist()


class EmulatedRig:
    """Around an emulated replica, in this process or behind HTTP."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._versions = {0: INITIAL}

    def next_publication(self) -> Publication:
        version = Version(number=len(self._versions), digest=f"digest-{len(self._versions)}")
        self._versions[version.number] = version
        return Publication(version=version, transport="memory", location="nowhere", size_bytes=0, dtype="float32")

    def reference(self, version: int, tokens: Ints) -> Floats:
        return replies.logprobs_of(tokens, self._versions[version], T)


EMULATED = EmulatedEngineConfig(
    timing=EngineTiming(step_s=0.002, row_s=1e-5, context_s=1e-8, prefill_s=2e-5, pair_s=1e-10),
    max_running=8,
    max_step_tokens=256,
    max_model_len=1024,
    kv_capacity_tokens=24 * 1024,
    block_tokens=1,
    vocabulary=VOCABULARY,
    stage_s=0.01,
    commit_s=0.01,
)


class EmbeddedRig:
    def __init__(self, replica: Replica, folder: Path) -> None:
        self.replica = replica
        self._folder = folder
        self._number = 0

    def next_publication(self) -> Publication:
        self._number += 1
        return tiny.publish(self._folder, self._number, seed=self._number)

    def reference(self, version: int, tokens: Ints) -> Floats:
        return tiny.reference(version, tokens, T)


class WholeFleet:
    """A fleet behind the port of one replica: what the publisher does to all is done to all."""

    name = "fleet"

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._fleet = Fleet(replicas, RouterConfig(siblings_together=8))
        self.generate, self.score = self._fleet.generate, self._fleet.score

    async def statistics(self) -> EngineStatistics:
        each = [await member.statistics() for member in self._fleet.replicas]
        return replace(await self._fleet.statistics(), intervals=each[0].intervals)

    async def stage(self, publication: Publication) -> None:
        for member in self._fleet.replicas:
            await member.stage(publication)

    async def pause(self, in_flight: InFlight) -> Pause:
        pauses = await asyncio.gather(*[member.pause(in_flight) for member in self._fleet.replicas])
        return Pause(
            held=sum(p.held for p in pauses),
            finished=sum(p.finished for p in pauses),
            aborted=sum(p.aborted for p in pauses),
        )

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        (held,) = {await member.commit(version, cache) for member in self._fleet.replicas}
        self._fleet.serving(held)
        return held

    async def resume(self) -> None:
        for member in self._fleet.replicas:
            await member.resume()
