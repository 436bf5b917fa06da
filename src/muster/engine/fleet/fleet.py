"""Several replicas as one engine: a call goes where its cache is, waits for memory, and survives the replica.

    generate ─► router: placed, or waits ─► replica ─► Completion
                   ▲                          │ failed, no answer in time, or made by old weights:
                   └── again, elsewhere ◄─────┘ after the tokens that arrived, if the replica streams
    a replica that does not serve ─► asked how it is, while there are calls ─► serves again when its version is right

Law: a turn is answered once, however often it was tried: a try that failed left nothing behind, for cancelling a
request aborts it in its engine, and what it had said is the beginning of the answer. Only a healthy replica gets turns;
one that holds another version than the published one gets none. What the fleet decides is decided in `router` and
`health`; here it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from muster import clock
from muster.engine.config import RouterConfig
from muster.engine.fleet.health import ReplicaState
from muster.engine.fleet.member import Member, is_refusal
from muster.engine.fleet.router import Placed, Router
from muster.engine.pieces import Reply
from muster.engine.port import EngineStatistics, Replica, Scores
from muster.errors import EngineError
from muster.types import Completion, Ints, Sampling, Session, Version

_DEFAULT = RouterConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatistics:
    """A frozen snapshot. `waiting`: calls that no replica has yet."""

    states: Mapping[str, ReplicaState]
    sessions: int
    running: int
    waiting: int


class Fleet:
    """Implements `engine.port.Engine`. Needs no closing: whatever it does in the background ends with the last call.

    Its `replicas` are those to use everywhere else (publisher, statistics), so that the fleet sees what they say.

    Example:
        fleet = Fleet([EmulatedReplica(f"r{i}", preset("h100-llama-8b")) for i in range(4)])
        completion = await fleet.generate(tokens, Sampling(max_tokens=200), Session(id="t1", group="g1"))
        fleet.release(Session(id="t1", group="g1"))
    """

    def __init__(self, replicas: Sequence[Replica | str], config: RouterConfig = _DEFAULT) -> None:
        """replicas: each is there for good, or is the name of a member whose servers come and go, a `Seat`."""
        self.replicas: tuple[Member, ...] = tuple(Member(r, self._changed) for r in replicas)
        self._by_name = {m.name: m for m in self.replicas}
        self._config = config
        self._router = Router(config)
        self._tickets = count()
        self._places: dict[int, asyncio.Future[str]] = {}  # of calls that wait
        self._calls = 0
        self._expected: Version | None = None
        self._prober: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unserved_since = clock.now()

    # --- the port -------------------------------------------------------------------------------------

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        """Raises `EngineError` when the request is refused, failed `attempts` times, or no replica serves."""
        self._calls += 1
        try:
            return await self._answered(tokens, sampling, session)
        finally:
            self._calls -= 1

    async def _answered(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        """Try, and go on elsewhere from what the tries before had said."""
        reply, asked = Reply(tokens, sampling), clock.now()
        avoid: frozenset[str] = frozenset()
        for left in reversed(range(self._config.attempts)):
            prompt, rest, ticket = reply.prompt, reply.sampling, next(self._tickets)
            member = self._by_name[await self._place(ticket, prompt, rest, session, avoid)]
            queue_s = clock.now() - asked
            try:
                completion = await self._ask(member, ticket, prompt, rest, session)
            except EngineError as error:
                if (kept := error.kept) is not None:
                    reply.add(replace(kept, queue_s=kept.queue_s + queue_s))
                    if (whole := reply.whole) is not None:
                        return whole
                    asked = clock.now()
                if is_refusal(error) or not left:
                    raise EngineError(str(error), error.evidence, kept=reply.kept) from None
                avoid |= {member.name}
            else:
                return reply.add(replace(completion, queue_s=completion.queue_s + queue_s))
        raise AssertionError("the last try returns or raises")

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        """By the first replica that serves."""
        while True:
            member = await self._serving()
            try:
                return await member.score(tokens, temperature=temperature)
            except EngineError:
                await member.ask(self._config.probe_timeout_s)
                if member.health.serves:  # the request is wrong, not the replica
                    raise

    async def statistics(self) -> EngineStatistics:
        """All replicas that serve as one: counters are sums, the version is theirs. Device intervals stay with each."""
        await asyncio.gather(*[m.ask(self._config.probe_timeout_s) for m in self.replicas if m.health.serves])
        await self._serving()
        all = [m.limits for m in self.replicas if m.health.serves and m.limits is not None]
        return EngineStatistics(
            replica="fleet",
            version=self._expected or all[0].version,
            running=sum(s.running for s in all),
            waiting=sum(s.waiting for s in all) + self._router.waiting,
            capacity=sum(s.capacity for s in all),
            prompt_tokens=sum(s.prompt_tokens for s in all),
            cached_tokens=sum(s.cached_tokens for s in all),
            recomputed_tokens=sum(s.recomputed_tokens for s in all),
            generated_tokens=sum(s.generated_tokens for s in all),
            kv_used_tokens=sum(s.kv_used_tokens for s in all),
            kv_capacity_tokens=sum(s.kv_capacity_tokens for s in all),
        )

    # --- what the rest of the run says -----------------------------------------------------------------

    def release(self, session: Session) -> None:
        """The session has ended, however. Idempotent, never waits."""
        self._tell(self._router.released(session.id, clock.now()))

    def serving(self, version: Version | None) -> None:
        """`version` was delivered to every replica that serves: another one makes a replica stale from now on.

        None: the next one is on its way. Until it is delivered, it is right where it was staged, beside the one before.
        """
        if version is None:
            return
        self._expected = version
        for member in self.replicas:
            member.expect(version)

    def retire(self, name: str) -> None:
        """No more turns for this replica; those that it has are finished. `states` says when: see `draining`."""
        self._by_name[name].change(lambda health: health.retire())

    def draining(self, name: str) -> int:
        """Requests that a replica still has."""
        return self._router.running(name)

    def fleet_statistics(self) -> FleetStatistics:
        return FleetStatistics(
            states={m.name: m.health.state for m in self.replicas},
            sessions=self._router.sessions,
            running=sum(self._router.running(m.name) for m in self.replicas),
            waiting=self._router.waiting,
        )

    # --- one call -------------------------------------------------------------------------------------

    async def _place(
        self, ticket: int, tokens: Ints, sampling: Sampling, session: Session, avoid: frozenset[str]
    ) -> str:
        """The replica for this try. Cancelling gives up the place in line."""
        place = self._places[ticket] = asyncio.get_running_loop().create_future()
        placed = self._router.request(
            ticket,
            session.id,
            group=session.group,
            tokens=len(tokens),
            reply_tokens=sampling.max_tokens,
            now=clock.now(),
            avoid=avoid,
        )
        self._tell(placed)
        self._watch()
        try:
            return await self._placed(place)
        except BaseException:
            if self._places.pop(ticket, None) is not None:
                self._tell(self._router.withdraw(ticket, clock.now()))
            else:  # it was placed in the very moment in which the caller gave up
                self._tell(self._router.ended(ticket, tokens=len(tokens), now=clock.now()))
            raise

    async def _placed(self, place: asyncio.Future[str]) -> str:
        """Waiting for memory has no limit; waiting while no replica serves has one."""
        since = clock.now()
        while True:
            left_s = max(since, self._unserved_since) + self._config.wait_s - clock.now()
            try:
                async with clock.timeout(self._config.wait_s if self._router.serves else left_s):
                    return await asyncio.shield(place)
            except TimeoutError:
                if not self._router.serves and clock.now() >= max(since, self._unserved_since) + self._config.wait_s:
                    raise EngineError(f"no replica serves since {self._config.wait_s:g} s: {self._states()}") from None

    async def _ask(self, member: Member, ticket: int, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        """One try at one replica."""
        length, computed, prefill_s = len(tokens), 0, 0.0
        try:
            completion = await member.generate_within(
                self._config.request_timeout_s, tokens, sampling, session, expected=self._expected
            )
            length += len(completion.tokens_T)
            computed, prefill_s = len(tokens) - completion.cached_tokens, completion.prefill_s
            return completion
        finally:
            self._tell(
                self._router.ended(
                    ticket, tokens=length, computed_tokens=computed, prefill_s=prefill_s, now=clock.now()
                )
            )

    def _tell(self, placed: Sequence[Placed]) -> None:
        """Pass on what the router decided, and set its alarm."""
        for p in placed:
            place = self._places.pop(p.ticket)
            if not place.done():
                place.set_result(p.replica)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._router.wake_at is not None:
            delay_s = max(0.0, self._router.wake_at - clock.now())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._tell(self._router.wake(clock.now()))

    # --- replicas -------------------------------------------------------------------------------------

    def _changed(self, member: Member) -> None:
        """Tell the router of a replica's changed health."""
        served = self._router.serves
        if member.health.serves:
            limits = member.limits
            assert limits is not None, "whoever serves has answered"
            self._router.join(member.name, kv_capacity_tokens=limits.kv_capacity_tokens, capacity=limits.capacity)
            if not any(m.health.unheard for m in self.replicas):  # else the first to answer would get everything
                self._wake()
        elif member.health.gone:
            self._tell(self._router.leave(member.name, clock.now()))
        else:
            self._router.suspend(member.name)
        if served and not self._router.serves:
            self._unserved_since = clock.now()
        self._watch()

    def _watch(self) -> None:
        """Ask those that do not serve how they are, as long as somebody calls."""
        if self._calls and self._prober is None and any(m.health.watched for m in self.replicas):
            self._prober = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        try:
            while self._calls and (asked := [m for m in self.replicas if m.health.watched]):
                await asyncio.gather(*[m.ask(self._config.probe_timeout_s) for m in asked])
                self._wake()
                if any(m.health.watched for m in self.replicas):
                    await clock.sleep(self._config.probe_every_s)
        finally:
            self._prober = None

    async def _serving(self) -> Member:
        """The first that serves; one that was never asked is asked now."""
        for member in self.replicas:
            if member.health.state is ReplicaState.STARTING:
                await member.ask(self._config.probe_timeout_s)
            if member.health.serves:
                return member
        raise EngineError(f"no replica serves: {self._states()}")

    def _states(self) -> str:
        return ", ".join(f"{m.name} is {m.health.state}{m.why}" for m in self.replicas)
