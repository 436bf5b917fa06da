"""An `EmulatedCore` on an event loop: one timer, and a list of what to do at the next step's end.

Law: whatever changes the batch happens between two steps, as in a real server; a call that arrives within a step
waits for its end, and cuts the stride there. On a virtual loop time jumps from stride to stride; in real time a timer
that fires late does not slow the emulated server down.

    call ─► inbox ─ cut(now) ─► timer at due ─► finish ─► inbox ─► begin ─► timer at due …
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from muster import clock
from muster.engine.config import EmulatedEngineConfig
from muster.engine.port import CachePolicy, EngineStatistics, InFlight, Pause, Scores, Staged
from muster.errors import EngineError, MusterError, UserError
from muster.lab.emulated.core import EmulatedCore
from muster.lab.emulated.replies import Policy, logprobs_of
from muster.types import Completion, Ints, Publication, Sampling, Session, Version

T = TypeVar("T")


class EmulatedEngine:
    """Implements `server.ServedEngine`; `EmulatedReplica` makes a port of it. Use it on one running loop.

    Errors: `UserError` for tokens that cannot be served, `EngineError` for what cannot be done now.
    """

    def __init__(
        self, config: EmulatedEngineConfig, *, name: str, version: Version, policy: Policy | None = None
    ) -> None:
        self.name, self.config = name, config
        self._policy = policy
        self._core = self._new_core(version)
        self._inbox: list[Callable[[], object]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ids: set[str] = set()  # of requests that are waited for
        self._pending: dict[asyncio.Future[Any], None] = {}  # what callers wait for, in order

    @property
    def core(self) -> EmulatedCore:
        """For reading; change it through the calls below."""
        return self._core

    async def generate(self, request_id: str, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        """Cancelling aborts the request. `tokens` are kept, not copied: do not write to them any more."""
        tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        self._core.check(tokens)
        if request_id in self._ids:
            raise UserError(f"request_id {request_id!r} is in use")
        arrived = clock.now()
        result: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()

        def done(completion: Completion) -> None:
            if not result.done():
                result.set_result(completion)

        core = self._core
        self._ids.add(request_id)
        try:
            self._post(lambda: core.submit(request_id, tokens, sampling, session, done, arrived))
            return await self._answer(result)
        except asyncio.CancelledError:
            if core is self._core:
                self._post(lambda: core.abort([request_id]))
            raise
        finally:
            self._ids.discard(request_id)

    async def progress(self, request_id: str, start: int) -> Completion | None:
        """Does not disturb the stride in flight."""
        return self._core.progress(request_id, start, clock.now())

    async def score(self, tokens: Ints, temperature: float) -> Scores:
        """Takes the time of its prefill, beside the batch; also while paused."""
        tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        self._core.check(tokens)
        await self._spend(self.config.timing.prompt_s(len(tokens), self.config.max_step_tokens))
        version = self._core.version
        if not self.config.logprobs:
            return Scores(logprobs_T=np.zeros(len(tokens), np.float32), version=version)
        return Scores(logprobs_T=logprobs_of(tokens, version, temperature), version=version)

    async def statistics(self, *, take_intervals: bool) -> EngineStatistics:
        return self._core.statistics(clock.now(), take_intervals=take_intervals)

    async def stage(self, publication: Publication) -> Staged:
        """Takes the time of the transfer, within the publication's own limit, and of decoding."""
        if self._core.updates.holds(publication.version):
            return Staged()
        rate = min(self.config.stage_bytes_per_s, publication.max_bytes_per_s or math.inf)
        transfer_s = publication.size_bytes / rate
        await self._spend(transfer_s + self.config.stage_s)
        self._core.updates.stage(publication.version)
        return Staged(transfer_s=transfer_s, decode_s=self.config.stage_s, size_bytes=publication.size_bytes)

    async def pause(self, in_flight: InFlight, *, clear_cache: bool = False) -> Pause:
        result: asyncio.Future[Pause] = asyncio.get_running_loop().create_future()

        def effective(pause: Pause) -> None:
            if not result.done():
                result.set_result(pause)

        self._post(lambda: self._core.pause(in_flight, effective))
        pause = await self._answer(result)
        if clear_cache:
            await self.reset_cache(preempt=True)
        return pause

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        if self._core.updates.may_commit(version):
            await self._spend(self.config.commit_s)
        return await self._call(lambda: self._core.commit(version, cache))

    async def resume(self) -> None:
        await self._call(self._core.resume)

    async def abort(self, ids: list[str] | None) -> int:
        return await self._call(lambda: self._core.abort(ids))

    async def reset_cache(self, *, preempt: bool) -> None:
        await self._call(lambda: self._core.reset_cache(preempt=preempt))

    async def paused(self) -> bool:
        return self._core.paused

    async def version(self) -> Version:
        return self._core.version

    def fail(self, reason: str) -> None:
        """The process is gone: every call that waits fails with `reason`, and nothing steps."""
        for result in list(self._pending):
            if not result.done():
                result.set_exception(EngineError(reason))
        self._inbox.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def restart(self, version: Version) -> None:
        """A fresh process that holds `version`, with an empty cache."""
        self.fail(f"{self.name} was restarted")
        self._core = self._new_core(version)

    def _new_core(self, version: Version) -> EmulatedCore:
        return EmulatedCore(self.config, name=self.name, version=version, now=clock.now(), policy=self._policy)

    async def _call(self, act: Callable[[], T]) -> T:
        """The result of `act`, done between two steps."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def run() -> None:
            if result.done():
                return
            try:
                result.set_result(act())
            except MusterError as error:
                result.set_exception(error)

        self._post(run)
        return await self._answer(result)

    async def _answer(self, result: asyncio.Future[T]) -> T:
        """Wait for `result`; fails at once when the process does."""
        self._pending[result] = None
        try:
            return await result
        finally:
            del self._pending[result]

    async def _spend(self, delay_s: float) -> None:
        """Let time pass; fails at once when the process does."""
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with clock.timeout(delay_s):
                await self._answer(never)
        except TimeoutError:
            return

    def _post(self, act: Callable[[], object]) -> None:
        """Do `act` at once if nothing steps, else when the step that runs now has ended."""
        due = self._core.due
        if due is None:
            self._core.now = max(self._core.now, clock.now())
            act()
            self._begin()
            return
        self._inbox.append(act)
        if self._core.cut(clock.now()) < due:
            self._set_timer()

    def _step(self) -> None:
        self._timer = None
        try:
            self._core.finish()
            acts, self._inbox = self._inbox, []
            for act in acts:
                act()
            self._begin()
        except BaseException as error:  # nobody awaits a timer: whoever awaits an answer must hear of it
            for result in list(self._pending):
                if not result.done():
                    result.set_exception(error)
            raise

    def _begin(self) -> None:
        if self._core.due is None and self._core.begin(self._core.now):
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._core.due
        assert due is not None, "a timer is for a stride"
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due - clock.now()), self._step)
