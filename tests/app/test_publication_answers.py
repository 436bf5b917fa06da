"""Answers that come late, twice or never while weights are published, and replicas that die of it, on virtual time.

    sessions ask all the time ─► Fleet ─► Flaky replicas ◄─ Publisher ◄─ Delivery

Whatever happens: every turn is answered, every token is labelled with the weights that sampled it, and at the end every
replica serves the newest version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster import clock
from muster.engine.config import EmulatedEngineConfig, RouterConfig
from muster.engine.fleet.fleet import Fleet
from muster.engine.fleet.health import ReplicaState
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Staged
from muster.engine.timing import EngineTiming
from muster.errors import EngineError, PublicationError
from muster.journal import Journal
from muster.lab.emulated.replica import EmulatedReplica
from muster.lab.emulated.replies import logprobs_of
from muster.lab.faults import INITIAL
from muster.orchestrator.delivery import Delivery
from muster.publish.config import PublisherConfig
from muster.publish.publisher import Publisher
from muster.types import Completion, Floats, Ints, Publication, Sampling, Session, Version

Mode = Literal["late", "twice", "never", "lost", "dies"]
Call = Literal["stage", "pause", "commit", "resume"]
T_ = TypeVar("T_")

ENGINE = EmulatedEngineConfig(
    timing=EngineTiming(step_s=0.01, prefill_s=1e-4), max_running=8, kv_capacity_tokens=50_000, vocabulary=1000
)
PUBLISHER = PublisherConfig(stage_timeout_s=10, commit_timeout_s=10, attempts=2, canary_tolerance=1e-3)
ROUTER = RouterConfig(request_timeout_s=120.0, probe_timeout_s=5.0, probe_every_s=1.0, attempts=10)
LATE_S = 25.0
DOWN_S = 15.0
CANARY = np.arange(3, 40, dtype=np.int32)


class Flaky(EmulatedReplica):
    """Meets what is in its `plan` at the next such call."""

    def __init__(self, name: str) -> None:
        super().__init__(name, ENGINE)
        self.plan: dict[Call, Mode] = {}
        self.later: list[asyncio.Task[None]] = []

    async def stage(self, publication: Publication) -> Staged:
        return await self._met("stage", lambda: super(Flaky, self).stage(publication))

    async def pause(self, in_flight: InFlight) -> Pause:
        return await self._met("pause", lambda: super(Flaky, self).pause(in_flight))

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        return await self._met("commit", lambda: super(Flaky, self).commit(version, cache))

    async def resume(self) -> None:
        await self._met("resume", lambda: super(Flaky, self).resume())

    async def _met(self, call: Call, act: Callable[[], Awaitable[T_]]) -> T_:
        match self.plan.pop(call, None):
            case "late":
                self.later.append(asyncio.ensure_future(self._late(act)))
                await asyncio.Event().wait()
            case "never":
                self.faults.hang(call)
            case "twice":
                await act()
            case "lost":
                await act()
                raise self.faults.lost(call)
            case "dies":
                self.crash()
                asyncio.get_running_loop().call_later(DOWN_S, self.restart)
        return await act()

    async def _late(self, act: Callable[[], Awaitable[Any]]) -> None:
        await clock.sleep(LATE_S)
        with suppress(EngineError):
            await act()


class Weights:
    """Stands for the trainer."""

    def __init__(self) -> None:
        self.versions = {0: INITIAL}
        self._number = 0

    async def export(self, number: int) -> Publication:
        self._number = number
        version = self.versions.setdefault(number, Version(number=number, digest=f"v{number}"))
        return Publication(version=version, transport="memory", location="", size_bytes=0, dtype="float32")

    async def score(self, sequences: Sequence[Ints], *, temperature: float) -> list[Floats]:
        return [logprobs_of(tokens, self.versions[self._number], temperature) for tokens in sequences]


class Ground:
    def __init__(self, replicas: int = 3) -> None:
        self.replicas = [Flaky(f"r{i}") for i in range(replicas)]
        self.fleet = Fleet(self.replicas, ROUTER)
        self.weights = Weights()
        self.answered = 0
        self._stop = False
        self.delivery = Delivery(
            journal=Journal.in_memory(meta={}),
            trainer=self.weights,  # type: ignore[arg-type]
            publisher=Publisher(self.fleet.replicas, PUBLISHER),
            retire=lambda publication: None,
            canary=CANARY,
            temperature=1.0,
            attempts=2,
            patience_s=0.0,
            serves=self.fleet.serving,
        )

    async def deliver(self, number: int) -> None:
        with suppress(PublicationError):
            await self.delivery.deliver(number, trained_at=clock.now())

    async def heal(self, number: int) -> None:
        """As the run does once a second."""
        while set(self.states.values()) != {ReplicaState.HEALTHY}:
            asked, answers, silent = self.delivery.serving, list[EngineStatistics](), dict[str, EngineError]()
            for member in self.fleet.replicas:
                try:
                    answers.append(await member.statistics())
                except EngineError as error:
                    silent[member.name] = error
            if answers and self.delivery.look(answers, silent, asked=asked):
                await self.deliver(number)
            await clock.sleep(1.0)

    async def session(self, name: str) -> None:
        """One turn after the other."""
        rng = np.random.default_rng(int(name))
        while not self._stop:
            tokens = rng.integers(3, 1000, 80).astype(np.int32)
            serving = self.delivery.serving
            completion = await self.fleet.generate(tokens, Sampling(max_tokens=150), Session(id=name, group=name))
            self.check(tokens, completion)
            assert serving is None or completion.versions_T[-1] >= serving.number, "nothing old serves a new turn"
            self.answered += 1

    def check(self, tokens: Ints, completion: Completion) -> None:
        """Every token carries the version that sampled it."""
        sequence = np.concatenate([tokens, completion.tokens_T])
        for number in sorted(set(completion.versions_T.tolist())):
            made = completion.versions_T == number
            expected = logprobs_of(sequence, self.weights.versions[number], 1.0)[len(tokens) :]
            np.testing.assert_array_equal(completion.logprobs_T[made], expected[made])

    @property
    def states(self) -> dict[str, ReplicaState]:
        return dict(self.fleet.fleet_statistics().states)

    async def play(self, faults: Sequence[tuple[int, int, Call, Mode]], deliveries: int = 3) -> None:
        """faults: (before which delivery, replica, call, what happens to it)."""
        await self.deliver(1)
        sessions = [asyncio.create_task(self.session(str(i))) for i in range(6)]
        for number in range(2, 2 + deliveries):
            for at, replica, call, mode in faults:
                if at == number - 2:
                    self.replicas[replica].plan[call] = mode
            await self.deliver(number)
            await clock.sleep(20.0)
        for replica in self.replicas:
            replica.plan.clear()
        await clock.sleep(LATE_S + DOWN_S)
        last = 2 + deliveries
        await self.deliver(last)
        await self.heal(last)
        self._stop = True
        await asyncio.gather(*sessions)
        for member in self.fleet.replicas:
            assert (await member.statistics()).version == self.weights.versions[last]
        assert self.fleet.fleet_statistics().waiting == 0
        assert self.answered >= 6


def play(faults: Sequence[tuple[int, int, Call, Mode]]) -> Ground:
    async def main() -> Ground:
        ground = Ground()
        async with clock.timeout(5000.0):
            await ground.play(faults)
        return ground

    return clock.run_virtual(main())


CALLS: tuple[Call, ...] = ("stage", "pause", "commit", "resume")
MODES: tuple[Mode, ...] = ("late", "twice", "never", "lost", "dies")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", CALLS)
def test_one_replica_whose_answer_is_late_doubled_lost_or_never_comes(call: Call, mode: Mode) -> None:
    play([(0, 0, call, mode)])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", CALLS)
def test_all_replicas_at_once(call: Call, mode: Mode) -> None:
    play([(1, replica, call, mode) for replica in range(3)])


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from(CALLS), st.sampled_from(MODES)), max_size=6
    )
)
def test_any_faults_in_any_order(faults: list[tuple[int, int, Call, Mode]]) -> None:
    play(faults)
