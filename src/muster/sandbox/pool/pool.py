"""The sandbox pool: leases of forks, some of them started before they are asked for.

    lease ─► ticket ─► Slots.decide ─► warm fork (alive? checked) ─┐
                                   └─► own fork ──────────────────┴─► Lease … closed in the background
                        ▲                                              │ has had its share, and others wait
                        └──────────── frozen, its slot given up ◄──────┘

Consumes: leases, and the kinds that the scheduler says come next. Waits for: a free slot. Unblocked by: a close.
Two lanes with their own capacity: agents and verifiers, so that verification never waits behind agents that
wait for it. Law: what to do is decided in `slots`; this file does it. A sandbox is leased once, and closed behind the
back of whoever used it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from muster import clock
from muster.errors import SandboxError, SandboxStartError
from muster.sandbox.config import SandboxConfig
from muster.sandbox.pool.lease import ForkKind, Lane, Lease, LeaseRequest
from muster.sandbox.pool.slots import Boot, Evict, HandOver, Kind, Slots, Warm
from muster.sandbox.port import Mount, Sandbox, SandboxBackend, Snapshot
from muster.types import Limits

_BOOT_SAMPLES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A fork that will be leased soon."""

    snapshot: Snapshot
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStatistics:
    """Statistics of a lane. `live` is leased sandboxes, booting ones included."""

    capacity: int
    live: int
    warm: int
    waiting: int
    closing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics:
    """A frozen snapshot. `boot_p50_s` over the last boots; None before the first. Counts grow."""

    agent: LaneStatistics
    verifier: LaneStatistics
    boot_p50_s: float | None
    boots: int
    warm_hits: int
    warm_deaths: int
    pauses: int  # of leases that gave way to others


@dataclass(frozen=True, slots=True)
class _Grant:
    """A slot, and the warm fork in it, if any."""

    sandbox: Sandbox | None


class _LaneState:
    """One lane: the pure slots, those who wait, and the forks that wait."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.tickets: dict[int, asyncio.Future[_Grant]] = {}
        self.warm: dict[ForkKind, deque[Sandbox]] = {}
        self.wake: asyncio.TimerHandle | None = None

    def statistics(self) -> LaneStatistics:
        s = self.slots
        return LaneStatistics(
            capacity=s.capacity,
            live=s.leased.total(),
            warm=s.warm.total(),
            waiting=s.waiting,
            closing=s.closing.total(),
        )


class Pool:
    """Leases of sandboxes over any backend.

    Example:
        async with pool.lease(snapshot, limits, "trajectory-7") as lease:
            await lease.sandbox.run("ls", timeout_s=10)
    """

    def __init__(self, backend: SandboxBackend, config: SandboxConfig) -> None:
        self.backend = backend
        self._config = config
        self._lanes = {
            Lane.AGENT: _LaneState(
                Slots(
                    capacity=config.slots,
                    warm=config.warm,
                    memory_bytes=config.pool_memory_bytes,
                    boots_per_s=config.boots_per_s,
                    slice_s=config.slice_s,
                    weigh=self._memory_bytes,
                )
            ),
            Lane.VERIFIER: _LaneState(Slots(capacity=config.verifier_slots)),
        }
        self._wanted: dict[ForkKind, Wanted] = {}
        self._numbers = itertools.count()
        self._chores: set[asyncio.Task[None]] = set()
        self._boots_s: deque[float] = deque(maxlen=_BOOT_SAMPLES)
        self._boots = self._warm_hits = self._warm_deaths = self._pauses = 0

    def prefetch(self, wanted: Iterable[Wanted]) -> None:
        """Prefetch what will be leased next, in order, once per fork. Replaces the last list; starts without waiting.

        Only the beginning is read: what may be warm now, and as many again that take their places.
        """
        wanted = list(itertools.islice(wanted, 2 * self._config.warm))
        kinds = [ForkKind(w.snapshot.id, w.limits) for w in wanted]
        lane = self._lanes[Lane.AGENT]
        # a fork may still be warming or warm that this list no longer names: forget only what has no fork
        held = {k for k in self._wanted if lane.slots.warm[k] or lane.slots.warming[k]}
        self._wanted = {k: w for k, w in self._wanted.items() if k in held} | dict(zip(kinds, wanted, strict=True))
        lane.slots.want(kinds)
        self._act(Lane.AGENT)

    @asynccontextmanager
    async def lease(
        self,
        snapshot: Snapshot,
        limits: Limits,
        label: str,
        *,
        mounts: tuple[Mount, ...] = (),
        lane: Lane = Lane.AGENT,
        toolchain: Snapshot | None = None,
    ) -> AsyncGenerator[Lease]:
        """Waits for a slot, then for the fork. Raises `SandboxStartError`. Closes in the background at the end."""
        request = LeaseRequest(
            snapshot=snapshot, limits=limits, label=label, lane=lane, mounts=mounts, toolchain=toolchain
        )
        asked = clock.now()
        grant = await self._slot(request)
        granted = clock.now()
        sandbox, warm = await self._entered(request, grant)
        lease = Lease(self, request, sandbox, queued_s=granted - asked, start_s=clock.now() - granted, warm=warm)
        try:
            yield lease
        finally:
            if lease.holds:
                self._left(lease)

    def gives_way(self, lease: Lease) -> bool:
        """See `Lease.should_give_way`."""
        return self._lanes[lease.request.lane].slots.gives_way(lease.attained_s)

    async def give_way(self, lease: Lease) -> bool:
        """See `Lease.give_way`."""
        slots = self._lanes[lease.request.lane].slots
        slots.leaving += 1
        try:
            state = await lease.sandbox.keep()
        finally:
            slots.leaving -= 1
        if state is None:
            return False
        try:
            lease.paused()
            self._left(lease)
            request = replace(lease.request, snapshot=state)
            asked = clock.now()
            grant = await self._slot(request, lease.attained_s)
            granted = clock.now()
            sandbox, _ = await self._entered(request, grant)
            lease.resumed(request, sandbox, queued_s=granted - asked, start_s=clock.now() - granted)
        finally:
            self._chore(self.backend.discard(state))
        self._pauses += 1
        return True

    def statistics(self) -> PoolStatistics:
        boots = sorted(self._boots_s)
        return PoolStatistics(
            agent=self._lanes[Lane.AGENT].statistics(),
            verifier=self._lanes[Lane.VERIFIER].statistics(),
            boot_p50_s=boots[len(boots) // 2] if boots else None,
            boots=self._boots,
            warm_hits=self._warm_hits,
            warm_deaths=self._warm_deaths,
            pauses=self._pauses,
        )

    async def close(self) -> None:
        """Close the warm forks and wait for background work. Leases must have ended; the backend stays open."""
        self.prefetch([])
        for lane in self._lanes.values():
            if lane.wake is not None:
                lane.wake.cancel()
        while self._chores:
            await asyncio.gather(*self._chores)

    # --- doing what was decided -------------------------------------------------------------------------

    async def _slot(self, request: LeaseRequest, attained_s: float = 0.0) -> _Grant:
        lane, kind, state = request.lane, request.kind, self._lanes[request.lane]
        if not state.slots.fits(kind):
            raise SandboxStartError(
                f"{request.label}: needs {self._memory_bytes(kind)} bytes of memory, more than all of the pool has; "
                f"raise sandbox.pool_memory_bytes ({state.slots.memory_bytes})"
            )
        ticket = next(self._numbers)
        future: asyncio.Future[_Grant] = asyncio.get_running_loop().create_future()
        state.tickets[ticket] = future
        state.slots.request(ticket, kind, attained_s)
        self._act(lane)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._give_back(lane, kind, ticket, future)
            raise

    async def _entered(self, request: LeaseRequest, grant: _Grant) -> tuple[Sandbox, bool]:
        """The sandbox for a granted slot, and whether it was warm; the slot is given back if there is none."""
        try:
            if grant.sandbox is not None:
                if await grant.sandbox.alive():
                    self._warm_hits += 1
                    return grant.sandbox, True
                self._warm_deaths += 1
                self._chore(self._close(grant.sandbox))
            return await self._boot(request), False
        except BaseException:
            self._lanes[request.lane].slots.lapsed(request.kind)
            self._act(request.lane)
            raise

    def _left(self, lease: Lease) -> None:
        """Close the sandbox of a left lease behind its back; the slot is free then."""
        request = lease.request
        self._lanes[request.lane].slots.released(request.kind)
        self._chore(self._close_in(request.lane, request.kind, lease.sandbox.sandbox))

    def _give_back(self, lane: Lane, kind: ForkKind, ticket: int, future: asyncio.Future[_Grant]) -> None:
        """The one who waited was cancelled, perhaps just after it got its slot."""
        slots = self._lanes[lane].slots
        if not future.done():
            slots.withdraw(ticket)
            del self._lanes[lane].tickets[ticket]
            self._act(lane)
        elif (sandbox := future.result().sandbox) is not None:
            slots.released(kind)
            self._chore(self._close_in(lane, kind, sandbox))
        else:
            slots.lapsed(kind)
            self._act(lane)

    def _act(self, lane: Lane) -> None:
        state = self._lanes[lane]
        now = clock.now()
        for action in state.slots.decide(now):
            match action:
                case HandOver(ticket=ticket, kind=ForkKind() as kind):
                    state.tickets.pop(ticket).set_result(_Grant(state.warm[kind].popleft()))
                case Boot(ticket=ticket):
                    state.tickets.pop(ticket).set_result(_Grant(None))
                case Warm(kind=ForkKind() as kind):
                    self._chore(self._warm_up(lane, kind, self._wanted[kind]))
                case Evict(kind=ForkKind() as kind):
                    self._chore(self._close_in(lane, kind, state.warm[kind].popleft()))
                case _:
                    raise AssertionError(action)
        if state.slots.wake_at is not None and state.wake is None:
            loop = asyncio.get_running_loop()
            state.wake = loop.call_later(state.slots.wake_at - now, self._wake, lane)

    def _wake(self, lane: Lane) -> None:
        self._lanes[lane].wake = None
        self._act(lane)

    async def _boot(self, request: LeaseRequest) -> Sandbox:
        started = clock.now()
        sandbox = await self.backend.fork(
            request.snapshot,
            limits=request.limits,
            label=request.label,
            mounts=request.mounts,
            toolchain=request.toolchain,
        )
        self._boots_s.append(clock.now() - started)
        self._boots += 1
        return sandbox

    async def _warm_up(self, lane: Lane, kind: ForkKind, wanted: Wanted) -> None:
        state = self._lanes[lane]
        failed = False
        try:
            sandbox = await self._boot(
                LeaseRequest(
                    snapshot=wanted.snapshot, limits=wanted.limits, label="warm", lane=lane, mounts=(), toolchain=None
                )
            )
            state.warm.setdefault(kind, deque()).append(sandbox)
        except SandboxError:
            failed = True
        state.slots.warmed(kind, failed=failed)
        self._act(lane)

    async def _close_in(self, lane: Lane, kind: ForkKind, sandbox: Sandbox) -> None:
        try:
            await self._close(sandbox)
        finally:
            self._lanes[lane].slots.closed(kind)
            self._act(lane)

    def _memory_bytes(self, kind: Kind) -> int:
        assert isinstance(kind, ForkKind)
        return self._config.complete(kind.limits).memory_bytes or 0

    async def _close(self, sandbox: Sandbox) -> None:
        await sandbox.close()

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
