"""Replicas of every kind for the engine's contract, each with the truth about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

import tiny_llama as tiny
from engine.sglang.sglang_double import Double
from muster.engine.config import EmulatedEngineConfig, RouterConfig
from muster.engine.fleet.fleet import Fleet
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Replica, Staged
from muster.engine.timing import EngineTiming
from muster.lab.emulated import replies
from muster.lab.fakes.engine import FakeReplica, logprobs_of
from muster.lab.faults import INITIAL
from muster.model.config import LlamaConfig
from muster.types import Floats, Ints, Publication, Session, Version

T = 0.7
VOCABULARY = tiny.CONFIG.vocab_size


class Rig(Protocol):
    """A replica, and the truth about it."""

    @property
    def replica(self) -> Replica: ...

    block_tokens: int  # the prefix cache holds whole blocks of so many
    tells_cost: bool  # what a commit made the replica compute again, in tokens and seconds

    def next_publication(self) -> Publication: ...

    async def generated_tokens(self) -> int:
        """So far, those of unfinished replies too."""
        ...

    def reference(self, version: int, tokens: Ints) -> Floats: ...


class FakeRig:
    block_tokens = 1
    tells_cost = True

    def __init__(self) -> None:
        self._versions = {0: Version(number=0, digest="digest-0")}
        self.replica = FakeReplica("fake", policy=self._reply, version=self._versions[0])

    def next_publication(self) -> Publication:
        version = Version(number=len(self._versions), digest=f"digest-{len(self._versions)}")
        self._versions[version.number] = version
        return Publication(version=version, transport="memory", location="nowhere", size_bytes=0, dtype="float32")

    async def generated_tokens(self) -> int:
        return (await self.replica.statistics()).generated_tokens

    def reference(self, version: int, tokens: Ints) -> Floats:
        return logprobs_of(tokens, self._versions[version], T)

    def _reply(self, tokens: Ints, session: Session, version: Version) -> list[int]:
        return np.random.default_rng(int(tokens.sum())).integers(3, VOCABULARY, 1000).tolist()


class EmulatedRig:
    """Around an emulated replica, in this process or behind HTTP."""

    block_tokens = 1
    tells_cost = True

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._versions = {0: INITIAL}

    def next_publication(self) -> Publication:
        version = Version(number=len(self._versions), digest=f"digest-{len(self._versions)}")
        self._versions[version.number] = version
        return Publication(version=version, transport="memory", location="nowhere", size_bytes=0, dtype="float32")

    async def generated_tokens(self) -> int:
        return (await self.replica.statistics()).generated_tokens

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
    tells_cost = True

    def __init__(
        self, replica: Replica, folder: Path, config: LlamaConfig = tiny.CONFIG, block_tokens: int = 1
    ) -> None:
        self.replica, self.block_tokens = replica, block_tokens
        self._folder, self._config = folder, config
        self._number = 0

    def next_publication(self) -> Publication:
        self._number += 1
        return tiny.publish(self._folder, self._number, seed=self._number, config=self._config)

    async def generated_tokens(self) -> int:
        return (await self.replica.statistics()).generated_tokens

    def reference(self, version: int, tokens: Ints) -> Floats:
        return tiny.reference(version, tokens, T, self._config)


class SglangRig(EmbeddedRig):
    """A reply counts when it has ended; until then the double knows."""

    tells_cost = False

    def __init__(self, replica: Replica, folder: Path, double: Double) -> None:
        super().__init__(replica, folder)
        self._double = double

    async def generated_tokens(self) -> int:
        return self._double.scheduler.sampled_tokens


class WholeFleet:
    """A fleet behind the port of one replica: what the publisher does to all is done to all."""

    name = "fleet"

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._fleet = Fleet(replicas, RouterConfig(siblings_together=8))
        self._held: Version | None = None
        self.generate = self._fleet.generate
        self.score = self._fleet.replicas[0].score  # also while paused, when the fleet as such serves nothing

    async def statistics(self) -> EngineStatistics:
        each = [await member.statistics() for member in self._fleet.replicas]
        return replace(await self._fleet.statistics(), intervals=each[0].intervals)

    def supports(self, in_flight: InFlight, cache: CachePolicy) -> str | None:
        reasons = [member.supports(in_flight, cache) for member in self._fleet.replicas]
        return next((reason for reason in reasons if reason is not None), None)

    async def stage(self, publication: Publication) -> Staged:
        staged = [await member.stage(publication) for member in self._fleet.replicas]
        return Staged(size_bytes=sum(s.size_bytes for s in staged))

    async def pause(self, in_flight: InFlight) -> Pause:
        pauses = await asyncio.gather(*[member.pause(in_flight) for member in self._fleet.replicas])
        return Pause(
            held=sum(p.held for p in pauses),
            finished=sum(p.finished for p in pauses),
            aborted=sum(p.aborted for p in pauses),
            held_tokens=sum(p.held_tokens for p in pauses),
        )

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        (held,) = {await member.commit(version, cache) for member in self._fleet.replicas}
        self._held = held
        return held

    async def resume(self) -> None:
        for member in self._fleet.replicas:
            await member.resume()
        if self._held is not None:
            self._fleet.serving(self._held)
