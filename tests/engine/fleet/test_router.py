from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine.config import RouterConfig
from muster.engine.fleet.router import TOKENS_A_PLACE, Placed, Router

HOLD_S = 10.0


def router(replicas: int = 2, *, kv: int = 10_000, capacity: int = 64, **config: Any) -> Router:
    made = Router(RouterConfig(**{"hold_s": HOLD_S, "headroom": 0.0, **config}))
    for i in range(replicas):
        made.join(f"r{i}", kv_capacity_tokens=kv, capacity=capacity)
    return made


def ask(
    r: Router, ticket: int, session: str, *, group: str = "", tokens: int = 1000, now: float = 0.0, **more: Any
) -> list[Placed]:
    return r.request(ticket, session, group=group, tokens=tokens, reply_tokens=100, now=now, **more)


def where(placed: list[Placed]) -> str:
    (only,) = placed
    return only.replica


def turn(r: Router, ticket: int, session: str, *, tokens: int = 1000, now: float = 0.0, group: str = "") -> str:
    """A whole turn that is placed at once."""
    place = where(ask(r, ticket, session, group=group, tokens=tokens, now=now))
    r.ended(ticket, tokens=tokens + 100, now=now)
    return place


@pytest.mark.parametrize("policy", ["affinity", "consistent_hash"])
def test_a_session_stays_where_its_cache_is(policy: str) -> None:
    r = router(4, kv=100_000, policy=policy)
    homes = {s: turn(r, i, f"s{s}") for i, s in enumerate(range(20))}
    assert all(turn(r, 100 + s, f"s{s}", now=1.0) == home for s, home in homes.items())


def test_round_robin_goes_round_and_least_loaded_to_who_runs_least() -> None:
    r = router(3, policy="round_robin")
    assert {where(ask(r, i, "a" * (i + 1))) for i in range(3)} == {"r0", "r1", "r2"}
    r = router(3, policy="least_loaded")
    assert [where(ask(r, i, f"s{i}")) for i in range(3)] == ["r0", "r1", "r2"]
    r.ended(1, tokens=10, now=0.0)
    assert where(ask(r, 3, "s3")) == "r1"


def test_consistent_hashing_moves_only_the_sessions_of_the_replica_that_went() -> None:
    r = router(4, policy="consistent_hash")
    homes = {s: turn(r, s, f"s{s}") for s in range(40)}
    r.leave("r2", 0.0)
    again = {s: turn(r, 100 + s, f"s{s}") for s in range(40)}
    assert {s for s in homes if homes[s] != again[s]} == {s for s in homes if homes[s] == "r2"}


def test_new_sessions_go_to_the_replica_with_the_fewest_and_siblings_to_their_prompt() -> None:
    r = router(2, kv=100_000)
    assert where(ask(r, 0, "a0", group="a")) == "r0"
    assert where(ask(r, 1, "b0", group="b")) == "r1"
    assert where(ask(r, 2, "a1", group="a")) == "r0"
    assert where(ask(r, 3, "b1", group="b")) == "r1"


def test_siblings_do_not_make_one_replica_hot() -> None:
    r = router(2, kv=100_000)
    homes = [where(ask(r, i, f"a{i}", group="a")) for i in range(16)]
    assert abs(homes.count("r0") - homes.count("r1")) <= 4


def test_who_does_not_fit_waits_until_a_session_ends() -> None:
    r = router(1, kv=5000)
    turn(r, 0, "a", tokens=2500)
    assert ask(r, 1, "b", tokens=2500, now=1.0) == []
    assert r.waiting == 1
    assert r.released("a", 2.0) == [Placed(ticket=1, replica="r0")]


def test_a_resident_goes_at_once_while_others_wait() -> None:
    r = router(1, kv=5000)
    turn(r, 0, "a", tokens=2500)
    assert ask(r, 1, "b", tokens=2500, now=1.0) == []
    assert where(ask(r, 2, "a", tokens=2700, now=2.0)) == "r0"


def test_a_resident_in_a_long_tool_call_gives_way_and_the_router_says_when() -> None:
    r = router(1, kv=5000)
    turn(r, 0, "a", tokens=2500)
    assert ask(r, 1, "b", tokens=2500, now=1.0) == []
    assert r.wake_at == HOLD_S
    assert where(r.wake(HOLD_S)) == "r0"
    assert ask(r, 2, "a", tokens=2700, now=HOLD_S + 1) == []


def test_nobody_gives_way_when_nobody_waits() -> None:
    r = router(1, kv=5000)
    turn(r, 0, "a", tokens=2500)
    assert where(ask(r, 1, "a", tokens=2700, now=100 * HOLD_S)) == "r0"
    assert r.wake_at is None


def test_the_time_to_give_way_is_that_of_computing_the_whole_memory() -> None:
    r = router(1, kv=5000, hold_s=None)
    ask(r, 0, "a", tokens=2500)
    r.ended(0, tokens=2600, computed_tokens=2500, prefill_s=5.0, now=5.0)
    ask(r, 1, "b", tokens=2500, now=5.0)
    assert r.wake_at == pytest.approx(5.0 + 5000 / 500)


def test_in_line_a_session_is_behind_those_that_began_before_and_are_no_longer() -> None:
    r = router(1, kv=6000)
    turn(r, 0, "holder", tokens=5000)
    assert ask(r, 1, "first", tokens=600) == []
    assert ask(r, 2, "second", tokens=600) == []
    assert [p.ticket for p in r.released("holder", 1.0)] == [1, 2]


def test_a_long_context_puts_a_session_back_by_a_bounded_number_of_places() -> None:
    r = router(1, kv=6000)
    turn(r, 0, "long", tokens=2000)  # 8 places
    turn(r, 1, "holder", tokens=2000, now=1.0)
    ask(r, 2, "filler", tokens=2000, now=HOLD_S)  # long gave way
    assert r.waiting == 0
    assert ask(r, 3, "long", tokens=2200, now=HOLD_S) == []  # 8 places behind who began as early
    for later in range(4, 20):
        assert ask(r, later, f"s{later}", tokens=400, now=HOLD_S) == []  # 1 place, and the third to begin, or later
    went = r.ended(2, tokens=2100, now=HOLD_S) + r.released("filler", HOLD_S) + r.released("holder", HOLD_S)
    assert [p.ticket for p in went[:5]] == [4, 5, 6, 7, 3]


def test_a_call_that_gave_up_is_not_placed() -> None:
    r = router(1, kv=5000)
    turn(r, 0, "a", tokens=2500)
    ask(r, 1, "b", tokens=2500)
    assert r.withdraw(1, 0.0) == []
    assert r.released("a", 0.0) == []
    assert (r.waiting, r.sessions) == (0, 1)


def test_the_sessions_of_a_dead_replica_move_and_its_answers_are_ignored() -> None:
    r = router(2, kv=100_000)
    assert where(ask(r, 0, "a")) == "r0"
    r.leave("r0", 0.0)
    r.join("r0", kv_capacity_tokens=100_000, capacity=64)
    r.ended(0, tokens=1000, now=0.0)
    assert r.running("r0") == 0
    r.leave("r0", 0.0)
    assert where(ask(r, 1, "a", now=1.0)) == "r1"


def test_a_suspended_replica_gets_no_turns_and_finishes_what_it_has() -> None:
    r = router(2, kv=100_000)
    assert where(ask(r, 0, "a")) == "r0"
    r.suspend("r0")
    assert {where(ask(r, i, f"s{i}")) for i in range(1, 5)} == {"r1"}
    assert r.running("r0") == 1
    r.ended(0, tokens=1100, now=1.0)
    assert r.running("r0") == 0
    assert where(ask(r, 9, "a", now=2.0)) == "r1"


def test_without_replicas_everybody_waits() -> None:
    r = router(0)
    assert ask(r, 0, "a") == []
    assert not r.serves
    r.join("r0", kv_capacity_tokens=10_000, capacity=8)
    assert r.wake(1.0) == [Placed(ticket=0, replica="r0")]


def test_a_try_avoids_the_replica_that_failed_it_unless_there_is_no_other() -> None:
    r = router(2, kv=100_000)
    assert turn(r, 0, "a") == "r0"
    assert where(ask(r, 1, "a", avoid=frozenset({"r0"}))) == "r1"
    alone = router(1, kv=100_000)
    assert where(ask(alone, 1, "a", avoid=frozenset({"r0"}))) == "r0"


def slow_and_quick(r: Router, *, turns: int, context: int) -> str:
    """Replica that session `a` goes to after turns on r0, which takes ten times as long for a token as r1."""
    ask(r, 0, "a", tokens=context)
    ask(r, 1, "b", tokens=100)
    r.ended(1, tokens=200, computed_tokens=100, prefill_s=0.1, now=1.0)
    r.ended(0, tokens=context + 100, computed_tokens=context, prefill_s=context / 1000, now=10.0)
    r.released("b", 10.0)
    for number in range(1, turns):
        now = 20.0 * number
        if where(ask(r, 10 + number, "a", tokens=context, now=now)) == "r1":
            return "r1"
        r.ended(10 + number, tokens=context + 100, now=now + 10.0)
    return where(ask(r, 99, "a", tokens=context, now=1000.0))


def test_a_session_leaves_a_slow_replica_when_the_turns_to_come_repay_computing_its_context_again() -> None:
    assert slow_and_quick(router(2, kv=100_000), turns=5, context=1000) == "r1"
    assert slow_and_quick(router(2, kv=1_000_000), turns=2, context=50_000) == "r0"


def test_a_full_replica_takes_no_new_session() -> None:
    r = router(1, kv=100_000, capacity=2)
    assert ask(r, 0, "a")
    assert ask(r, 1, "b")
    assert ask(r, 2, "c") == []
    assert where(r.ended(0, tokens=1100, now=1.0)) == "r0"


# --- any events ---------------------------------------------------------------------------------------

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "end", "end", "release", "withdraw", "leave", "join", "wake"]),
        st.integers(0, 11),
        st.integers(50, 4000),
        st.floats(0, 8),
    ),
    max_size=120,
)


@dataclass
class Driver:
    """A world around a router: sessions with one turn at a time."""

    router: Router
    now: float = 0.0
    waiting: dict[int, str] = field(default_factory=dict[int, str])
    running: dict[int, tuple[str, str, int]] = field(default_factory=dict[int, tuple[str, str, int]])
    log: list[Placed] = field(default_factory=list[Placed])
    tickets: int = 0
    tokens: dict[str, int] = field(default_factory=dict[str, int])

    def busy(self, session: str) -> bool:
        return session in self.waiting.values() or any(s == session for s, _, _ in self.running.values())

    def heard(self, placed: list[Placed]) -> None:
        for p in placed:
            session = self.waiting.pop(p.ticket)  # KeyError: placed twice, or after it gave up
            self.running[p.ticket] = (session, p.replica, self.tokens[session])
        self.log += placed

    def step(self, what: str, who: int, tokens: int, pause_s: float) -> None:
        self.now += pause_s
        session = f"s{who}"
        match what:
            case "ask" if not self.busy(session):
                self.tokens[session] = max(tokens, self.tokens.get(session, 0))
                self.tickets += 1
                self.waiting[self.tickets] = session
                self.heard(
                    self.router.request(
                        self.tickets,
                        session,
                        group=f"g{who % 3}",
                        tokens=self.tokens[session],
                        reply_tokens=50,
                        now=self.now,
                    )
                )
            case "end" if self.running:
                ticket = min(self.running)
                self.end(ticket)
            case "release" if not self.busy(session):
                self.tokens.pop(session, None)
                self.heard(self.router.released(session, self.now))
            case "withdraw" if self.waiting:
                ticket = max(self.waiting)
                del self.waiting[ticket]
                self.heard(self.router.withdraw(ticket, self.now))
            case "leave":
                self.heard(self.router.leave(f"r{who % 3}", self.now))
            case "join":
                self.router.join(f"r{who % 3}", kv_capacity_tokens=8000, capacity=6)
                self.heard(self.router.wake(self.now))
            case "wake":
                self.heard(self.router.wake(self.now))
            case _:
                pass

    def end(self, ticket: int) -> None:
        session, _, tokens = self.running.pop(ticket)
        self.tokens[session] = tokens + 50
        self.heard(self.router.ended(ticket, tokens=tokens + 50, now=self.now))


@settings(max_examples=150, deadline=None)
@given(EVENTS, st.sampled_from(["affinity", "round_robin", "least_loaded", "consistent_hash"]))
def test_every_request_is_placed_once_or_withdrawn_and_nobody_starves(
    events: list[tuple[str, int, int, float]], policy: str
) -> None:
    driver = Driver(router(3, kv=8000, capacity=6, policy=policy))
    for event in events:
        driver.step(*event)
        assert driver.router.waiting == len(driver.waiting)
    driver.router.join("r0", kv_capacity_tokens=8000, capacity=6)
    for _ in range(400):  # what runs ends, and time passes: then everybody who waits goes
        driver.now += HOLD_S
        driver.heard(driver.router.wake(driver.now))
        for ticket in list(driver.running):
            driver.end(ticket)
        if not driver.waiting:
            break
    assert not driver.waiting
    assert not driver.running
    for session in list(driver.tokens):
        driver.router.released(session, driver.now)
    assert (driver.router.sessions, driver.router.waiting) == (0, 0)


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_the_same_events_give_the_same_decisions(events: list[tuple[str, int, int, float]]) -> None:
    logs: list[list[Placed]] = []
    for _ in range(2):
        driver = Driver(router(3, kv=8000, capacity=6))
        for event in events:
            driver.step(*event)
        logs.append(driver.log)
    assert logs[0] == logs[1]


def test_nobody_in_line_is_overtaken_by_who_is_behind() -> None:
    overtaking_was_possible = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        driver = Driver(router(2, kv=8000, capacity=6))
        began: dict[str, int] = {}
        begun = 0
        order: dict[int, int] = {}
        for _ in range(200):
            what = str(rng.choice(["ask", "ask", "end", "release", "withdraw", "wake"]))
            who, before, asked = int(rng.integers(12)), dict(driver.waiting), driver.tickets
            driver.step(what, who, int(rng.integers(50, 3000)), float(rng.uniform(0, 4)))
            if what == "release":
                began = {s: n for s, n in began.items() if s in driver.tokens}
            if driver.tickets == asked:
                went = [order[t] for t in before if t in driver.running]
                stayed = [order[t] for t in before if t in driver.waiting]
                if went and stayed:
                    overtaking_was_possible += 1
                    assert max(went) <= min(stayed)
            else:
                session = f"s{who}"
                if session not in began:
                    began[session], begun = begun, begun + 1
                order[asked + 1] = began[session] + driver.tokens[session] // TOKENS_A_PLACE
    assert overtaking_was_possible > 20
