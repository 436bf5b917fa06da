"""The thread that owns a `BatchingEngine`, seen from an event loop.

Law: only this thread touches the core. Others post functions of the core and await their results; between
two steps the thread runs what was posted, in order.

    loop ──post(fn)──► inbox ──► thread: run posted functions, else core.step()
      ◄──future────────────────────┘
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from muster import clock
from muster.engine.embedded.batching import BatchingEngine
from muster.engine.embedded.packed_weights import PackedWeights, load_published
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Scores, Staged
from muster.errors import MusterError
from muster.transport.receive import Receiver
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

T = TypeVar("T")


class EngineThread:
    """Implements `server.ServedEngine`. Create and use it on one running loop.

    `failed` resolves with the exception that ended the thread; nothing answers after that.
    """

    def __init__(self, core: BatchingEngine, receiver: Receiver, *, threads: int) -> None:
        """receiver: what is staged comes through it. threads: for the matrix library in the engine's thread; 0 keeps
        the library's default.
        """
        self.name = core.name
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._core = core
        self._receiver = receiver
        self._threads = threads
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name=f"engine-{core.name}", daemon=True)
        self._thread.start()

    async def generate(self, request_id: str, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        """Cancelling aborts the request. Raises `UserError` for tokens that the engine cannot take."""
        result: asyncio.Future[Completion] = self._loop.create_future()

        def submit(core: BatchingEngine) -> None:
            core.submit(request_id, tokens, sampling, session, lambda done: self._settle(result, done))

        def abort() -> None:
            self._core.abort([request_id])

        try:
            await self._call(submit)
            return await result
        except asyncio.CancelledError:
            self._inbox.put(abort)
            raise

    async def progress(self, request_id: str, start: int) -> Completion | None:
        return await self._call(lambda core: core.progress(request_id, start))

    async def score(self, tokens: Ints, temperature: float) -> Scores:
        return await self._call(lambda core: core.score(tokens, temperature))

    async def statistics(self, *, take_intervals: bool) -> EngineStatistics:
        return await self._call(lambda core: core.statistics(take_intervals=take_intervals))

    async def stage(self, publication: Publication) -> Staged:
        """Receive, map, fuse and pack in a helper thread while the engine serves.

        Raises `PublicationError`, `ModelError`, and `EngineError` when it is not what was published.
        """
        version = publication.version
        if await self._call(lambda core: core.holds(version)):
            return Staged()
        current = await self._call(lambda core: core.weights)
        weights, staged = await asyncio.to_thread(_fetched, self._receiver, publication, current)
        await self._call(lambda core: core.stage(version, weights))
        return staged

    async def pause(self, in_flight: InFlight, *, clear_cache: bool) -> Pause:
        result: asyncio.Future[Pause] = self._loop.create_future()
        await self._call(lambda core: core.pause(in_flight, lambda pause: self._settle(result, pause)))
        pause = await result
        if clear_cache:
            await self.reset_cache(preempt=True)
        return pause

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        return await self._call(lambda core: core.commit(version, cache))

    async def resume(self) -> None:
        await self._call(lambda core: core.resume())

    async def abort(self, ids: list[str] | None) -> int:
        return await self._call(lambda core: core.abort(ids))

    async def reset_cache(self, *, preempt: bool) -> None:
        await self._call(lambda core: core.reset_cache(preempt=preempt))

    async def paused(self) -> bool:
        return await self._call(lambda core: core.paused)

    async def version(self) -> Version:
        return await self._call(lambda core: core.version)

    def close(self) -> None:
        """End the thread after its current step."""
        self._inbox.put(None)
        self._thread.join()

    async def _call(self, function: Callable[[BatchingEngine], T]) -> T:
        result: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                value = function(self._core)
            except MusterError as error:  # the caller's; anything else ends the thread
                self._loop.call_soon_threadsafe(_fail, result, error)
            else:
                self._settle(result, value)

        self._inbox.put(run)
        return await result

    def _settle(self, result: asyncio.Future[T], value: T) -> None:
        self._loop.call_soon_threadsafe(_resolve, result, value)

    def _main(self) -> None:
        try:
            if self._threads:
                torch.set_num_threads(self._threads)
            while self._run_posted():
                if self._core.busy:
                    self._core.step()
        except BaseException as error:  # noqa: BLE001 (whatever it is: who waits is told)
            self._loop.call_soon_threadsafe(_resolve, self.failed, error)

    def _run_posted(self) -> bool:
        """Run what was posted; wait for something when there is nothing to compute. False: closed."""
        if not self._core.busy:
            run = self._inbox.get()
            if run is None:
                return False
            run()
        while not self._inbox.empty():
            run = self._inbox.get()
            if run is None:
                return False
            run()
        return True


def _fetched(receiver: Receiver, publication: Publication, current: PackedWeights) -> tuple[PackedWeights, Staged]:
    received = receiver.receive(publication)
    began = clock.now()
    weights = load_published(received.path, current.config, current.dtype)
    decode_s = received.decode_s + clock.now() - began
    return weights, Staged(transfer_s=received.transfer_s, decode_s=decode_s, size_bytes=received.size_bytes)


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
