"""Pause, commit and resume of a vLLM server: what happens, and in which order. No vLLM here.

    gate open ─pause─► shut ─► vLLM paused, all read ─commit─► cache? ─► workers change ─► salt, label ─resume─► open
                  └─ failed: open again                 a try that was given up goes on: the next one waits for it

Law: commit and resume exclude each other, and a call that is made again finds what the one before it did. Tokens are
sampled under a version only when its label is set, and a request enters with the salt of the last commit: what had
sampled nothing by then enters again, so that no old prefix is reused unless a commit shared it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from muster import clock
from muster.engine.port import CachePolicy, InFlight, Pause
from muster.engine.vllm.calls import Calls
from muster.errors import EngineError
from muster.types import Version


class Server(Protocol):
    """Calls that are made to vLLM. Errors: `EngineError`, or what vLLM raises when it is wrong."""

    async def pause(self, in_flight: InFlight) -> None:
        """Returns when nothing is computed any more, and all that was sampled has been read."""
        ...

    async def resume(self) -> None: ...

    async def reset_cache(self, *, preempt: bool) -> None: ...

    async def change(self, version: Version) -> Version:
        """The workers take what is staged as `version`; returns it with the digest of what they hold."""
        ...

    async def label(self, number: int) -> None:
        """Of what is sampled from now on."""
        ...

    async def abort(self, request_ids: Sequence[str]) -> None: ...


class Control:
    """Control of one server: pauses, commits, salts.

    Example:
        await control.gate.wait()                                   # a request, before it enters with `control.salt`
        await control.pause(InFlight.HOLD)
        await control.commit(version, CachePolicy.KEEP)
        await control.resume()
    """

    def __init__(self, name: str, server: Server, calls: Calls, version: Version) -> None:
        """version: what the server holds, and labels what it samples with."""
        self.version = version
        self.gate = asyncio.Event()
        self.gate.set()
        self._name, self._server, self._calls = name, server, calls
        self._salts = 0  # commits after which no prefix may be reused
        self._changing = asyncio.Lock()
        self._pausing: asyncio.Future[Pause] | None = None
        self._unlabelled = False  # the workers have changed, and the label is still the one before
        self._again: list[str] = []  # requests to be taken out, to enter under another salt

    @property
    def salt(self) -> str:
        """Salt of requests that share prefixes. Not the version: if it comes back, others have touched its cache."""
        return str(self._salts)

    @property
    def paused(self) -> bool:
        return self._pausing is not None

    async def pause(self, in_flight: InFlight) -> Pause:
        """Pausing again is the same pause, also while it still waits for requests."""
        async with self._changing:
            if self._pausing is None:
                self.gate.clear()
                found = self._calls.paused(clock.now())
                self._pausing = asyncio.ensure_future(self._take_pause(in_flight, found))
        return await asyncio.shield(self._pausing)

    async def commit(self, version: Version, cache: CachePolicy) -> Version:
        """Returns the version with the digest of what is held. Raises `EngineError` when it is not paused."""
        return await asyncio.shield(asyncio.ensure_future(self._commit(version, cache)))

    async def resume(self) -> None:
        """Idempotent. It ends a pause that still waits for requests."""
        async with self._changing:
            if self._pausing is None:
                return
            await self._settle()
            await self._server.resume()
            if not self._pausing.done():
                self._pausing.cancel()
            self._open()

    async def _take_pause(self, in_flight: InFlight, found: int) -> Pause:
        try:
            await self._server.pause(in_flight)
        except BaseException:
            if self._pausing is asyncio.current_task():  # nobody has resumed: who waits at the gate goes on
                self._open()
            raise
        return self._calls.met(in_flight, found)

    async def _commit(self, version: Version, cache: CachePolicy) -> Version:
        async with self._changing:
            if version != self.version:
                if self._pausing is None or not self._pausing.done():
                    raise EngineError(f"{self._name}: a version is committed to a paused engine; it is not paused")
                await self._settle()
                if cache in (CachePolicy.RECOMPUTE, CachePolicy.FLUSH):  # before: if it fails, nothing has changed
                    await self._server.reset_cache(preempt=True)
                self._changed(await self._server.change(version), cache)
            await self._settle()
            return self.version

    def _changed(self, held: Version, cache: CachePolicy) -> None:
        self.version, self._unlabelled = held, True
        self._calls.number = held.number
        if cache in (CachePolicy.RECOMPUTE, CachePolicy.FLUSH):
            self._calls.recompute()
        if cache is not CachePolicy.SHARE:
            self._salts += 1
            self._again = [call.request_id for call in self._calls.inside if not call.tokens]

    async def _settle(self) -> None:
        """Carry out what a commit owes: the label, and new entries for those that have sampled nothing."""
        if not self._unlabelled:
            return
        await self._server.label(self.version.number)
        self._calls.send_again(self._again)
        await self._server.abort(self._again)
        self._unlabelled, self._again = False, []

    def _open(self) -> None:
        self._pausing = None
        self._calls.resumed(clock.now())
        self.gate.set()
