from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.worlds import quiet
from muster import clock
from muster.engine.config import RouterConfig
from muster.engine.fleet.fleet import Fleet
from muster.errors import EngineError
from muster.journal import DropRow
from muster.lab.collection.workload import Lognormal
from muster.lab.fakes.engine import FakeReplica, logprobs_of
from muster.lab.world.actor import STOP, Actor, CharTokenizer
from muster.lab.world.chaos import Chaos, Fault
from muster.lab.world.crashing_journal import CrashingJournal
from muster.lab.world.faulty_engine import FaultyReplica
from muster.lab.world.scenario import scenario
from muster.lab.world.watched import WatchedEngine
from muster.rollout.renderer import Renderer
from muster.types import Sampling, Session, Version


def test_what_was_committed_before_a_death_survives_and_nothing_after_it() -> None:
    journal = CrashingJournal.in_memory(meta={})
    deaths: list[int] = []
    journal.crash_after(2, lambda: deaths.append(journal.count(DropRow)))
    for i in range(4):
        journal.record(DropRow(id=str(i), reason="r", at=0.0))
    assert deaths == [2]
    assert journal.survivor is not None
    assert journal.survivor.ids(DropRow) == ["0", "1"]


def test_one_that_is_spared_goes_on() -> None:
    journal = CrashingJournal.in_memory(meta={})
    journal.crash_after(1, lambda: pytest.fail("killed"))
    journal.cancel_crash()
    journal.record(DropRow(id="a", reason="r", at=0.0))
    assert journal.survivor is None


@given(seed=st.integers(0, 10**6))
def test_a_scenario_is_the_same_each_time_and_can_be_played(seed: int) -> None:
    world = scenario(seed)
    assert world == scenario(seed)
    assert world.slots >= world.group_size
    assert world.min_group is None or 2 <= world.min_group <= world.group_size
    assert all(0 < rate <= 1 for rate in world.rates.values())
    assert set(scenario(seed, [Fault.KILL]).rates) <= {Fault.KILL}


def test_a_capped_lognormal_has_its_median_and_its_cap() -> None:
    rng = np.random.default_rng(0)
    draws = [Lognormal(median=0.85, sigma=2.0, cap=60.0).draw(rng) for _ in range(4000)]
    assert np.median(draws) == pytest.approx(0.85, rel=0.1)
    assert max(draws) == 60.0


def test_a_fault_that_is_not_enabled_draws_nothing() -> None:
    chaos, other = Chaos(1, {}), Chaos(1, {})
    assert not any(chaos.happens(fault) for fault in Fault)
    assert chaos.rng.random() == other.rng.random()


def test_the_actor_plays_an_attempt_the_same_way_whoever_asks() -> None:
    def replies(version: Version) -> list[str]:
        world = quiet(5)
        actor, renderer = Actor(world, Chaos(5, {})), Renderer(CharTokenizer())
        tokens = renderer.prompt([{"role": "user", "content": "Do it."}])
        told: list[str] = []
        while not told or "DONE" not in told[-1]:
            reply = actor.reply(np.array(tokens, np.int32), Session(id="g0.0", group="g0"), version)
            told.append("".join(map(chr, reply)))
            tokens += [*reply, *renderer.observation([{"role": "user", "content": "."}], stopped=True)]
        return told

    first = replies(Version(number=0, digest="a"))
    assert first == replies(Version(number=3, digest="b"))
    assert all(reply.endswith(STOP) for reply in first)
    assert "```bash\nsleep" in first[0]


def test_a_reply_that_was_aborted_goes_on_where_it_was() -> None:
    actor = Actor(quiet(5), Chaos(5, {}))
    prompt = CharTokenizer().encode(CharTokenizer().render([{"role": "user", "content": "x"}], True))
    session, version = Session(id="g0.0", group="g0"), Version(number=0, digest="a")
    whole = list(actor.reply(np.array(prompt, np.int32), session, version))
    rest = actor.reply(np.array(prompt + whole[:10], np.int32), session, version)
    assert [*whole[:10], *rest] == whole


@given(st.lists(st.integers(0, 50_000), min_size=1, max_size=40), st.integers(0, 50_000))
def test_a_made_up_logprob_depends_on_the_past_and_the_weights_alone(tokens: list[int], more: int) -> None:
    version = Version(number=1, digest="w")
    short = logprobs_of(np.array(tokens, np.int32), version, 1.0)
    long = logprobs_of(np.array([*tokens, more], np.int32), version, 1.0)
    assert long[: len(tokens)].tolist() == short.tolist()
    assert short[0] == 0.0
    other = logprobs_of(np.array([*range(64)], np.int32), Version(number=1, digest="x"), 1.0)
    assert other.tolist() != logprobs_of(np.array([*range(64)], np.int32), version, 1.0).tolist()


def test_a_request_that_hangs_fails_at_its_deadline_and_is_written_down() -> None:
    async def main() -> tuple[float, set[str]]:
        chaos = Chaos(0, {Fault.ENGINE_HANG: 1.0})
        replica = FaultyReplica(FakeReplica("engine0", policy=lambda *_: [1]), chaos)
        with pytest.raises(EngineError, match="no answer within"):
            engine = WatchedEngine(Fleet([replica], RouterConfig(attempts=1)), chaos)
            await engine.generate(np.array([1], np.int32), Sampling(), Session(id="g0.0"))
        return clock.now(), chaos.faulted

    assert clock.run_virtual(main()) == (1800.0, {"g0.0"})
