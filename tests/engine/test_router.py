from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.engine.router import Placed, Router, RouterConfig

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


def test_the_line_is_by_when_a_session_began_and_nobody_overtakes_its_first() -> None:
    r = router(1, kv=6000)
    turn(r, 0, "old", tokens=2000)
    turn(r, 1, "holder", tokens=2000, now=1.0)
    ask(r, 2, "new", tokens=2000, now=HOLD_S)  # old gave way
    assert r.waiting == 0
    assert ask(r, 3, "newer", tokens=500, now=HOLD_S) == []
    assert ask(r, 4, "old", tokens=2200, now=HOLD_S + 0.5) == []
    placed = r.released("holder", HOLD_S + 0.5)
    assert placed[0].ticket == 4


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


def test_an_older_session_in_line_is_never_overtaken_by_one_without_cache() -> None:
    overtaking_was_possible = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        driver = Driver(router(2, kv=8000, capacity=6))
        began: dict[str, int] = {}
        for number in range(200):
            what = str(rng.choice(["ask", "ask", "end", "release", "withdraw", "wake"]))
            before, asked = dict(driver.waiting), driver.tickets
            driver.step(what, int(rng.integers(12)), int(rng.integers(50, 3000)), float(rng.uniform(0, 4)))
            if what == "release":
                began = {s: n for s, n in began.items() if s in driver.tokens}
            for session in driver.tokens:
                began.setdefault(session, number)
            went = [began[s] for t, s in before.items() if t in driver.running]
            stayed = [began[s] for t, s in before.items() if t in driver.waiting]
            if went and stayed and driver.tickets == asked:
                overtaking_was_possible += 1
                assert max(went) < min(stayed)
    assert overtaking_was_possible > 50
