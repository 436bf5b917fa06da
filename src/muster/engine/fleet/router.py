"""Router of turns to replicas: which, and when. Pure: no clock, event loop or engine; every event says what time it is.

    request ─► its cache is at home, or a replica has room ─► placed ─► ended ─► (in a tool) ─► request … ─► released
           └─► waits in line, by when the session began and how long it is ─► placed by a later event, or withdrawn

Law: every request is placed exactly once, or withdrawn; the same events give the same decisions. With `affinity` a
session's turn goes where its cache is, unless another replica is so much faster that moving pays. Who has none anywhere
gets a replica only when its context fits beside those that are promised room there (`routing.residents`): 256 growing
contexts in memory for 80 throw each other out at every turn, and each turn then computes its whole past again. Who
waits holds nothing.

The time that an idle resident keeps its room while others wait (`hold_s`) is rent against purchase. A share `w / M` of
memory is worth that share of the replica's time; computing `w` tokens again costs `w / P`. After `M / P` seconds the
rent has cost as much as the purchase, whatever `w` is, and no fixed rule that cannot see the future has a smaller
worst case (Karlin, Manasse, Rudolph, Sleator 1988: ski rental).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from muster.engine.config import RouterConfig
from muster.engine.fleet.learned import Growth, LearnedPace, PrefillRate
from muster.engine.fleet.residents import Residents
from muster.engine.fleet.turn_queue import TurnQueue, Waiting

TOKENS_A_PLACE = 250
"""Each 250 tokens of context put a waiting session one place back, as if it had begun one session later: who has little
needs little room, and how long it will be is unknown as long as it has not run; a long one loses nothing by waiting
for its end, a short one that turns out long and begins last is the tail of a batch. Nobody starves: whoever begins
context / 250 sessions later is behind."""

MOVING_PAYS = 1.5
"""A session leaves its cache for a replica that samples so many times as fast now, when that repays computing its
context there as many times: both are estimates, and whoever moved shall not move back. Moving by a guess of the load
instead of the measured pace costs more than it gains: what is computed again slows all others down."""

UNKNOWN_PREFILL_PER_S = 10_000.0
"""Prompt tokens a second of a replica that has computed none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The request `ticket` goes to `replica` now."""

    ticket: int
    replica: str


@dataclass(slots=True, kw_only=True)
class _Replica:
    name: str
    number: int
    capacity: int
    kv_capacity_tokens: int
    residents: Residents
    rate: PrefillRate = field(default_factory=PrefillRate)
    token_s: LearnedPace = field(default_factory=LearnedPace)  # of sampled tokens, waiting and prefill included
    accepts: bool = True
    running: int = 0
    sessions: int = 0  # whose home it is
    served: int = 0


@dataclass(slots=True, kw_only=True)
class _Session:
    id: str
    began: int  # how many had begun before
    group: str
    home: _Replica | None = None
    tokens: int = 0  # its context after the last turn
    busy: bool = False
    turns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    session: _Session
    replica: _Replica
    tokens: int
    since: float


class Router:
    """Router: all decisions of the fleet about where and when.

    Example:
        router = Router(RouterConfig())
        router.join("r0", kv_capacity_tokens=430_000, capacity=256)
        router.request(1, "t1", group="g1", tokens=900, reply_tokens=200, now=0.0)  # [Placed(ticket=1, replica="r0")]
    """

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._replicas: dict[str, _Replica] = {}
        self._sessions: dict[str, _Session] = {}
        self._groups: dict[str, dict[str, None]] = {}  # group -> replicas that computed its prompt
        self._members: dict[str, int] = {}  # live sessions of a group
        self._running: dict[int, _Running] = {}
        self._line = TurnQueue()
        self._growth = Growth()
        self._began = self._joined = 0
        self._turns = 0
        self.wake_at: float | None = None  # call `wake` then: a resident gives way by time alone

    # --- replicas -------------------------------------------------------------------------------------

    def join(self, name: str, *, kv_capacity_tokens: int, capacity: int) -> None:
        """Add a replica, empty, from the next event on. capacity: running requests that saturate it."""
        if name not in self._replicas:
            limit = int(kv_capacity_tokens * (1 - self._config.headroom))
            self._replicas[name] = _Replica(
                name=name,
                number=self._joined,
                capacity=capacity,
                kv_capacity_tokens=kv_capacity_tokens,
                residents=Residents(limit_tokens=limit),
            )
            self._joined += 1
        self._replicas[name].accepts = True

    def suspend(self, name: str) -> None:
        """No turns for now; what it has cached stays. Also how a replica is drained: `running` falls to 0."""
        if name in self._replicas:
            self._replicas[name].accepts = False

    def leave(self, name: str, now: float) -> list[Placed]:
        """Remove a replica and its cache: its sessions find another home at their next turn."""
        gone = self._replicas.pop(name, None)
        if gone is not None:
            for session in self._sessions.values():
                if session.home is gone:
                    session.home = None
            for holders in self._groups.values():
                holders.pop(name, None)
        return self._admit(now)

    def running(self, name: str) -> int:
        """Requests that it has now."""
        return self._replicas[name].running if name in self._replicas else 0

    @property
    def serves(self) -> bool:
        """Whether any replica takes turns."""
        return any(r.accepts for r in self._replicas.values())

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def sessions(self) -> int:
        """Known sessions: each was asked for, and not released."""
        return len(self._sessions)

    # --- requests -------------------------------------------------------------------------------------

    def request(
        self,
        ticket: int,
        session: str,
        *,
        group: str,
        tokens: int,
        reply_tokens: int,
        now: float,
        avoid: frozenset[str] = frozenset(),
    ) -> list[Placed]:
        """A turn of `session` whose prompt has `tokens`, for at most `reply_tokens` more. Who goes now, if anybody.

        avoid: replicas that have failed this turn; taken only when there is no other.
        """
        known = self._session(session, group, tokens)
        assert not known.busy, f"session {session!r} has a turn under way: one at a time"
        turn = Waiting(
            ticket=ticket,
            session=session,
            order=known.began + tokens // TOKENS_A_PLACE,
            tokens=tokens,
            reply_tokens=reply_tokens,
            since=now,
            avoid=avoid,
        )
        self._line.join(turn)
        home = known.home
        sticky = self._config.policy == "affinity"
        if sticky and home is not None and home.accepts and home.name not in avoid and session in home.residents:
            return [self._place(turn, known, self._quicker(turn, known, home, now) or home, now)]
        return self._admit(now)

    def ended(
        self, ticket: int, *, tokens: int, computed_tokens: int = 0, prefill_s: float = 0.0, now: float
    ) -> list[Placed]:
        """A placed request came back: its context has `tokens`, `computed_tokens` of the prompt took `prefill_s`."""
        turn = self._running.pop(ticket)
        replica, session = turn.replica, turn.session
        session.tokens, session.busy = tokens, False
        self._growth.replied.saw(max(0, tokens - turn.tokens))
        replica.running -= 1
        replica.rate.computed(computed_tokens, prefill_s)
        replica.token_s.saw(max(0, tokens - turn.tokens), now - turn.since)
        if session.home is replica:
            replica.residents.rests(session.id, tokens + self._growth.turn_tokens, now)
        return self._admit(now)

    def withdraw(self, ticket: int, now: float) -> list[Placed]:
        """Withdraw a request for which nobody waits any more. Not for requests that were placed."""
        self._line.leave(ticket)
        return self._admit(now)

    def released(self, session: str, now: float) -> list[Placed]:
        """The session has ended: what it held is free. Idempotent."""
        known = self._sessions.pop(session, None)
        if known is None:
            return []
        self._move_out(known)
        self._members[known.group] -= 1
        if not self._members[known.group]:
            del self._members[known.group]
            self._groups.pop(known.group, None)
        return self._admit(now)

    def wake(self, now: float) -> list[Placed]:
        """Time has passed."""
        return self._admit(now)

    # --- decisions ------------------------------------------------------------------------------------

    def _session(self, id: str, group: str, tokens: int) -> _Session:
        known = self._sessions.get(id)
        if known is None:
            known = self._sessions[id] = _Session(id=id, began=self._began, group=group)
            self._began += 1
            self._members[group] = self._members.get(group, 0) + 1
        elif known.tokens:
            self._growth.observed.saw(max(0, tokens - known.tokens))
        return known

    def _admit(self, now: float) -> list[Placed]:
        """Place the first in line as soon as a replica has room, and nobody before them."""
        placed: list[Placed] = []
        self.wake_at = None
        while (turn := self._line.first()) is not None:
            session = self._sessions[turn.session]
            replica = self._choose(turn, session, now)
            if replica is None:
                break
            placed.append(self._place(turn, session, replica, now))
        return placed

    def _choose(self, turn: Waiting, session: _Session, now: float) -> _Replica | None:
        replicas = [r for r in self._replicas.values() if r.accepts]
        replicas = [r for r in replicas if r.name not in turn.avoid] or replicas
        if not replicas:
            return None
        match self._config.policy:
            case "round_robin":
                self._turns += 1
                return replicas[self._turns % len(replicas)]
            case "least_loaded":
                return min(replicas, key=lambda r: (r.running, r.served, r.number))
            case "consistent_hash":
                return max(replicas, key=lambda r: _weight(turn.session, r.name))
            case "affinity":
                return self._with_room(turn, session, replicas, now)

    def _with_room(self, turn: Waiting, session: _Session, replicas: list[_Replica], now: float) -> _Replica | None:
        """The one with the fewest sessions, or the one that has the prompt already; then whoever was used least."""
        holders = self._groups.get(session.group, {}) if session.group else {}
        replicas.sort(
            key=lambda r: (
                r.sessions - (r is session.home) - self._config.siblings_together * (r.name in holders),
                r.running,
                r.served,
                r.number,
            )
        )
        if not self._config.admission:
            return session.home if session.home in replicas else replicas[0]
        for replica in replicas:
            if replica.running >= replica.capacity:
                continue
            hold_s = self._hold_s(replica)
            if replica.residents.make_room(self._need(turn), now=now, hold_s=hold_s):
                return replica
            gives_way_at = replica.residents.gives_way_at(hold_s)
            if gives_way_at is not None:
                self.wake_at = gives_way_at if self.wake_at is None else min(self.wake_at, gives_way_at)
        return None

    def _quicker(self, turn: Waiting, session: _Session, home: _Replica, now: float) -> _Replica | None:
        """A replica whose turns are clearly quicker now, when those to come repay computing the context there.

        How many will come nobody knows; a session that has had n turns is expected to have about n more.
        """
        free = [
            r
            for r in self._replicas.values()
            if r.accepts and r.running < r.capacity and r.sessions < home.sessions and r.token_s.tokens
        ]
        if not free:
            return None
        other = min(free, key=lambda r: (r.token_s.each(), r.number))
        gain_s = session.turns * self._growth.reply_tokens * (home.token_s.each() - other.token_s.each())
        cost_s = turn.tokens / other.rate.per_s(UNKNOWN_PREFILL_PER_S)
        if home.token_s.each() < MOVING_PAYS * other.token_s.each() or gain_s < MOVING_PAYS * cost_s:
            return None
        room = other.residents.make_room(self._need(turn), now=now, hold_s=self._hold_s(other))
        return other if room else None

    def _place(self, turn: Waiting, session: _Session, replica: _Replica, now: float) -> Placed:
        self._line.leave(turn.ticket)
        if session.home is not replica:
            self._move_out(session)
            session.home = replica
            replica.sessions += 1
        if session.group:
            self._groups.setdefault(session.group, {})[replica.name] = None
        replica.residents.starts(session.id, self._need(turn))
        replica.running += 1
        replica.served += 1
        session.busy = True
        session.turns += 1
        self._running[turn.ticket] = _Running(session=session, replica=replica, tokens=turn.tokens, since=now)
        return Placed(ticket=turn.ticket, replica=replica.name)

    def _move_out(self, session: _Session) -> None:
        if session.home is not None:
            session.home.residents.forget(session.id)
            session.home.sessions -= 1
            session.home = None

    def _need(self, turn: Waiting) -> int:
        return turn.tokens + min(turn.reply_tokens, self._growth.reply_tokens) + self._growth.turn_tokens

    def _hold_s(self, replica: _Replica) -> float:
        if self._config.hold_s is not None:
            return self._config.hold_s
        return replica.kv_capacity_tokens / replica.rate.per_s(UNKNOWN_PREFILL_PER_S)


def _weight(session: str, replica: str) -> int:
    """Rendezvous hashing: of the replicas' weights for a session the highest wins."""
    return zlib.crc32(f"{session}|{replica}".encode())
