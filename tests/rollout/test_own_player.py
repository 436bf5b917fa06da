"""An agent of the user's own: what is wrong with it is told before anything starts, and nothing of it is trained."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muster
from factories import make_task
from muster import clock
from muster.engine.port import Engine
from muster.errors import ConfigError, PlayerError
from muster.lab.fakes.engine import FakeReplica
from muster.lab.fakes.sandbox import FakeBackend
from muster.lab.fakes.verifier import FakeVerifier
from muster.rollout.agent import Agent
from muster.rollout.attempt import Rollout
from muster.rollout.config import AgentConfig
from muster.rollout.own_player import OwnPlayer, load_player, name_of
from muster.rollout.port import Episode, MakePlayer, Player
from muster.rollout.renderer import Renderer, Transcript
from muster.rollout.spans import SpanRecorder
from muster.sandbox.config import SandboxConfig
from muster.sandbox.pool.pool import Pool
from muster.types import Cause, Ints, Launch, Sampling, Session, Trajectory, Ungraded, Verdict, Version
from rollout.playing import ROOMY
from rollout.tokens import STOP, CharTokenizer


def attempt(make: MakePlayer, *, crash: bool = False, config: AgentConfig = ROOMY) -> Trajectory:
    """One attempt of such a player; its model says DONE."""

    def policy(tokens: Ints, session: Session, version: Version) -> Sequence[int]:
        return [ord(c) for c in f"DONE{STOP}"]

    async def main() -> Trajectory:
        backend = FakeBackend(rng=np.random.default_rng(0))
        engine = FakeReplica("engine0", policy=policy)
        if crash:
            engine.crash("no power")
        player = OwnPlayer(make, renderer=Renderer(CharTokenizer()), config=config).serve(engine)
        verifier = FakeVerifier(lambda task, state: 1.0)
        rollout = Rollout(agent=player, pool=Pool(backend, SandboxConfig(warm=0)), verifier=verifier)
        launch = Launch(id="g0.0", group_id="g0", task=make_task("task"), sibling=0)
        trajectory = await rollout.run(launch, SpanRecorder(launch.id), seed=1)
        await clock.sleep(1)
        assert backend.live == 0, "the sandbox was given back"
        return trajectory

    return clock.run_virtual(main())


class Plain(Agent):
    """Muster's own agent under another name."""


class BrokenParser(Agent):
    async def play(self, *_: Any, **__: Any) -> None:
        raise KeyError("path")


class BrokenBeginning(Agent):
    def begin(self, task: muster.Task) -> Episode:
        raise ValueError("no prompt")


class NoTokens(Agent):
    def begin(self, task: muster.Task) -> Episode:
        return Episode(Transcript(()))


class Judge(Agent):
    async def play(self, *_: Any, **__: Any) -> Any:
        return Cause.VERIFIER_PASSED


class Endless(Agent):
    async def play(self, *_: Any, **__: Any) -> None:
        await clock.sleep(1e6)


class OtherTemperature(Agent):
    async def play(self, task: Any, episode: Episode, sandbox: Any, session: Session, *_: Any) -> None:  # type: ignore[override]
        sampling = Sampling(temperature=0.3, max_tokens=4, stop_tokens=(), seed=0)
        await self.engine.generate(episode.transcript.tokens, sampling, session)


class InAGroup(Agent):
    async def play(self, *arguments: Any, **__: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(super().play(*arguments))


def test_an_own_player_is_graded_as_any() -> None:
    assert attempt(Plain).outcome.verdict is Verdict.SUCCESS


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (BrokenParser, "play raised KeyError: 'path' at test_own_player.py:"),
        (BrokenBeginning, "begin raised ValueError: no prompt"),
        (NoTokens, "an Episode that has tokens"),
        (Judge, "it must be None or the budget"),
        (Endless, "agent.player_timeout_s, 3600 s"),
        (OtherTemperature, "take config.temperature"),
    ],
)
def test_what_comes_out_of_a_users_code_is_never_the_models_doing(make: MakePlayer, says: str) -> None:
    outcome = attempt(make).outcome
    assert isinstance(outcome, Ungraded), "nothing of it can be trained"
    assert (outcome.verdict, outcome.cause) == (Verdict.INFRA, Cause.PLAYER_FAILED)
    assert says in outcome.evidence["error"]


def test_the_end_of_the_traceback_is_kept_as_evidence() -> None:
    assert "raise KeyError" in attempt(BrokenParser).outcome.evidence["traceback"]


@pytest.mark.parametrize("make", [Plain, InAGroup])
def test_what_the_engine_raised_passes_through(make: MakePlayer) -> None:
    assert attempt(make, crash=True).outcome.cause is Cause.ENGINE_FAILED


@dataclass(kw_only=True)
class NoMethods:
    engine: object
    renderer: object
    config: object

    def begin(self, task: object) -> None: ...


def make_only_a_renderer(*, renderer: Renderer) -> None: ...


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (NoMethods, "it has no method instruct and no play; see muster.Player"),
        (
            make_only_a_renderer,
            "unexpected keyword argument 'engine'.*it is called with engine=, renderer= and config=",
        ),
    ],
)
def test_a_player_that_is_none_is_told_before_anything_starts(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^agent.player = '{__name__}:{make.__name__}': .*{says}"):
        OwnPlayer(make, renderer=Renderer(CharTokenizer()), config=ROOMY)


def test_an_engine_serves_in_play_and_not_before() -> None:
    kept: list[Engine] = []

    def make(*, engine: Engine, renderer: Renderer, config: AgentConfig) -> Player:
        kept.append(engine)
        return Plain(engine=engine, renderer=renderer, config=config)

    OwnPlayer(make, renderer=Renderer(CharTokenizer()), config=ROOMY)
    with pytest.raises(PlayerError, match="call it in play"):
        clock.run_virtual(kept[0].statistics())


def test_a_player_is_found_by_name_in_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_players_of_a_test.py").write_text(
        "from muster.rollout.agent import Agent\nclass Mine(Agent): pass\n"
    )
    (tmp_path / "broken_of_a_test.py").write_text("\nraise OSError('no licence')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/nowhere")  # what the loader adds to the path goes with the test
    make = load_player("my_players_of_a_test:Mine")
    assert name_of(make) == "my_players_of_a_test:Mine"
    player = OwnPlayer(make, renderer=Renderer(CharTokenizer()), config=ROOMY)
    assert player.fingerprint["player"] == "my_players_of_a_test:Mine"
    with pytest.raises(ConfigError, match="write module:class, such as my_agents:MyPlayer"):
        load_player("Mine")
    with pytest.raises(ConfigError, match=r"neither installed nor in .*; is it on PYTHONPATH"):
        load_player("no_such_module_at_all:Mine")
    with pytest.raises(ConfigError, match="has no class 'Other'"):
        load_player("my_players_of_a_test:Other")
    with pytest.raises(ConfigError, match=r"OSError: no licence at broken_of_a_test\.py:2"):
        load_player("broken_of_a_test:Mine")


def test_a_player_given_as_an_object_has_a_name_or_is_refused() -> None:
    assert name_of(Plain) == f"{__name__}:Plain"
    with pytest.raises(ConfigError, match="give a class"):
        name_of(functools.partial(Plain))


def test_the_agent_of_the_example_is_asked_once_before_its_done_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    trajectory = attempt(load_player("own_agent:Careful"))
    first, last = trajectory.turns
    assert first.observation.startswith("You said DONE.")
    assert (last.reply, last.observation) == ("DONE", "")
    assert trajectory.outcome.verdict is Verdict.SUCCESS
