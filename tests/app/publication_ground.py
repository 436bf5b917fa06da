"""Real engines of a tiny model, each in its own process, and all that delivers weights to them; to be sabotaged."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

import tiny_llama as tiny
from muster import clock
from muster.engine.config import EmbeddedEngineConfig, RouterConfig
from muster.engine.embedded.launch import launch
from muster.engine.fleet.fleet import Fleet
from muster.engine.fleet.health import ReplicaState
from muster.engine.http.replica import HttpReplica
from muster.engine.pieces import Piece
from muster.engine.port import CachePolicy, Replica
from muster.engine.servers.running import OnEnd
from muster.errors import EngineError
from muster.journal import Journal
from muster.model import weights
from muster.orchestrator.delivery import Delivery
from muster.publish.config import PublisherConfig
from muster.publish.publisher import Publisher
from muster.publish.transports import Exporter
from muster.types import Completion, Floats, Ints, Publication, Sampling, Session, Version

T = 0.7
ENGINE = EmbeddedEngineConfig(
    dtype="float32", max_streams=4, max_model_len=1024, kv_capacity_tokens=8 * 1024, threads=1, control_timeout_s=10
)
ROUTER = RouterConfig(probe_timeout_s=1.0, probe_every_s=0.1)
PUBLISHER = PublisherConfig(
    cache=CachePolicy.RECOMPUTE, stage_timeout_s=10, commit_timeout_s=10, attempts=2, retry_pause_s=0.05
)
CANARY = np.arange(3, 40, dtype=np.int32)


class Saboteur:
    """A replica with traps: the next call named in `traps` meets its trap first. It notes when a first piece came."""

    def __init__(self, inner: HttpReplica, traps: dict[str, Callable[[], None]], spoke: asyncio.Event) -> None:
        self._inner, self._traps, self._spoke = inner, traps, spoke

    def __getattr__(self, call: str) -> Any:
        if (trap := self._traps.pop(call, None)) is not None:
            trap()
        return getattr(self._inner, call)

    async def stream(self, tokens: Ints, sampling: Sampling, session: Session) -> AsyncGenerator[Piece]:
        async for piece in self._inner.stream(tokens, sampling, session):
            self._spoke.set()
            yield piece


class Machine:
    """One engine process after another, under one name."""

    def __init__(self, name: str, model: Path) -> None:
        self.name = name
        self.traps: dict[str, Callable[[], None]] = {}
        self.spoke = asyncio.Event()
        self._model = model

    @asynccontextmanager
    async def start(self, on_end: OnEnd) -> AsyncIterator[Replica]:
        async with launch(ENGINE, self._model, self.name, on_end=on_end) as replica:
            yield Saboteur(replica, self.traps, self.spoke)

    def kill(self) -> None:
        os.kill(_pid(self.name), signal.SIGKILL)

    def dies_in(self, call: str) -> None:
        """It gets the next such call, says nothing, and is killed."""

        def trap() -> None:
            pid = _pid(self.name)
            os.kill(pid, signal.SIGSTOP)
            asyncio.get_running_loop().call_later(0.1, os.kill, pid, signal.SIGKILL)

        self.traps[call] = trap


class Weights:
    """Stands for the trainer: version n is the tiny model of seed n. exporter: how it travels; None: a shared file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self.corrupt = False
        self.exporter: Exporter | None = None

    async def export(self, number: int) -> Publication:
        self._number = number
        if self.exporter is None:
            publication = tiny.publish(self._folder, number, seed=number)
        else:
            state = tiny.random_state(number)
            arrays = {name: tensor.numpy() for name, tensor in state.items()}
            publication = self.exporter.export(arrays, number=number, digest=weights.digest(state), dtype="float32")
        if self.corrupt:
            path = Path(publication.location)
            path.write_bytes(path.read_bytes()[:-4] + b"\x00\x00\x80\x3f")
        return publication

    async def score(self, sequences: Sequence[Ints], *, temperature: float) -> list[Floats]:
        return [tiny.reference(self._number, tokens, temperature) for tokens in sequences]


class Ground:
    """A fleet, and what delivers weights to it."""

    def __init__(self, fleet: Fleet, folder: Path, publisher: PublisherConfig = PUBLISHER) -> None:
        self.fleet = fleet
        self.weights = Weights(folder)
        self.delivered: dict[int, Version] = {}
        self._number = 0
        self.delivery = Delivery(
            journal=Journal.in_memory(meta={}),
            trainer=self.weights,  # type: ignore[arg-type]
            publisher=Publisher(self.fleet.replicas, publisher),
            retire=lambda publication: None,
            canary=CANARY,
            temperature=T,
            attempts=2,
            patience_s=0.0,
            serves=self._serves,
        )

    def _serves(self, version: Version | None) -> None:
        if version is not None:
            self.delivered[version.number] = version
        self.fleet.serving(version)

    async def deliver(self, number: int) -> list[str]:
        """Names of the replicas that serve it."""
        self._number = number
        return [record.replica for record in await self.delivery.deliver(number, trained_at=clock.now())]

    async def look(self) -> bool:
        """As the run does once a second. Whether a replica is found with other weights."""
        asked, answers, silent = self.delivery.serving, [], {}
        for member in self.fleet.replicas:
            try:
                answers.append(await member.statistics())
            except EngineError as error:
                silent[member.name] = error
        return self.delivery.look(answers, silent, asked=asked)

    async def heal(self) -> None:
        """Until every replica serves what was delivered last."""
        while True:
            if await self.look():
                await self.deliver(self._number)
            if set(self.states.values()) == {ReplicaState.HEALTHY}:
                return
            await clock.sleep(0.05)

    async def look_until(self, done: Callable[[], bool]) -> None:
        while not done():
            await self.look()
            await clock.sleep(0.05)

    @property
    def states(self) -> dict[str, ReplicaState]:
        return dict(self.fleet.fleet_statistics().states)

    def ask(self, name: str, length: int) -> asyncio.Task[Completion]:
        sampling, session = Sampling(temperature=T, max_tokens=length, seed=7), Session(id=name, group=name)
        request = asyncio.create_task(self.fleet.generate(prompt(name), sampling, session))
        request.add_done_callback(lambda _: self.fleet.release(session))
        return request

    def labelled(self, name: str, completion: Completion, length: int) -> None:
        """It is whole, and every token is of the weights that its label says."""
        assert completion.finish == "length"
        assert len(completion.tokens_T) == len(completion.logprobs_T) == len(completion.versions_T) == length
        assert (np.diff(completion.versions_T) >= 0).all()
        sequence = np.concatenate([prompt(name), completion.tokens_T])
        for number in sorted(set(completion.versions_T.tolist())):
            assert number in self.delivered
            made = completion.versions_T == number
            expected = tiny.reference(number, sequence, T)[len(prompt(name)) :]
            np.testing.assert_allclose(completion.logprobs_T[made], expected[made], atol=2e-4)

    async def on_one_version(self, number: int) -> None:
        """Every replica serves it, digest and all."""
        for member in self.fleet.replicas:
            assert (await member.statistics()).version == self.delivered[number]
        assert set(self.states.values()) == {ReplicaState.HEALTHY}


async def answers(replica: Replica) -> None:
    while True:
        with suppress(EngineError):
            await replica.statistics()
            return
        await clock.sleep(0.02)


def _pid(name: str) -> int:
    """Of the engine process of that name that this process started."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            status = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if int(status[1]) == os.getpid() and name.encode() in words:
                return int(entry.name)
    raise AssertionError(f"no process of {name}")


def prompt(name: str) -> Ints:
    return np.random.default_rng(sum(name.encode())).integers(3, 300, 60).astype(np.int32)
