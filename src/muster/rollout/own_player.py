"""An agent of the user's own: made before anything starts, and fenced while it plays.

    agent.player = "module:class" ─load─► MakePlayer ─► OwnPlayer ◄─serve─ the engine, once there is one
                                                           └─ play ─► what it raises ─► INFRA, player_failed

Law: what engine and sandbox raise passes through, for they decide who is to blame. Whatever else comes out of a user's
code is neither the model's doing nor a crash of the run: nothing of that attempt is trained.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Generator
from typing import cast

from muster import clock, user_code
from muster.engine.port import Engine, EngineStatistics, Scores
from muster.errors import BoundaryError, ConfigError, JournalError, PlayerError, UserError
from muster.rollout.config import AgentConfig
from muster.rollout.port import Between, Episode, MakePlayer, Player, Spent
from muster.rollout.renderer import Renderer
from muster.rollout.spans import SpanRecorder
from muster.sandbox.port import Sandbox
from muster.types import Completion, Ints, Sampling, Session, Task
from muster.verifier.attribution import BUDGETS

TRACEBACK_LINES = 12  # kept with an outcome: the last ones


def load_player(name: str) -> MakePlayer:
    """The class that `agent.player` names. Raises `ConfigError`."""
    return user_code.load("agent.player", name, kind="class", example="my_agents:MyPlayer")


def name_of(make: MakePlayer) -> str:
    """`module:class`, by which a later process finds it. Raises `ConfigError` for what has no name."""
    module, name = getattr(make, "__module__", None), getattr(make, "__qualname__", None)
    if not module or not name:
        raise ConfigError(f"player = {make!r}: give a class, or a function that makes a player")
    return f"{module}:{name}"


class OwnPlayer:
    """Implements `rollout.port.Player` around a user's. Raises `ConfigError` for one that cannot be made, or is none.

    Example: `OwnPlayer(load_player(config.player), renderer=renderer, config=config).serve(fleet)`
    """

    def __init__(self, make: MakePlayer, *, renderer: Renderer, config: AgentConfig) -> None:
        self._limit_s = config.player_timeout_s
        self._engine = _Engine(config.temperature)
        self._name = config.player or name_of(make)
        self.fingerprint = {"player": self._name, "player_source": user_code.source_digest(make, self._name)}
        try:
            self._player = make(engine=self._engine, renderer=renderer, config=config)
        except UserError:
            raise
        except Exception as error:  # someone else's code: whatever it raises is told in our words
            raise ConfigError(
                f"agent.player = {self._name!r}: {user_code.described(error)}; "
                "it is called with engine=, renderer= and config="
            ) from error
        missing = [name for name in ("begin", "instruct", "play") if not callable(getattr(self._player, name, None))]
        if missing:
            raise ConfigError(
                f"agent.player = {self._name!r}: it has no method {' and no '.join(missing)}; see muster.Player"
            )

    def serve(self, engine: Engine) -> Player:
        """From now on the player's engine is this one."""
        self._engine.serve(engine)
        return self

    def begin(self, task: Task) -> Episode:
        with self._fenced("begin"):
            episode = cast(object, self._player.begin(task))  # whatever its type says
        if not isinstance(episode, Episode) or not len(episode.transcript):
            raise self._failed(f"begin gave {type(episode).__name__}; it must give an Episode that has tokens")
        return episode

    def instruct(self, episode: Episode, instruction: str) -> None:
        with self._fenced("instruct"):
            self._player.instruct(episode, instruction)

    async def play(
        self,
        task: Task,
        episode: Episode,
        sandbox: Sandbox,
        session: Session,
        spans: SpanRecorder,
        seed: int | None = None,
        between: Between | None = None,
    ) -> Spent | None:
        try:
            async with clock.timeout(self._limit_s):
                with self._fenced("play"):
                    spent = await self._player.play(task, episode, sandbox, session, spans, seed, between)
        except TimeoutError:  # ours: the player's own ones are fenced
            raise self._failed(f"play was not over after agent.player_timeout_s, {self._limit_s:g} s") from None
        if spent is not None and spent not in BUDGETS:
            raise self._failed(f"play returned {spent!r}; it must be None or the budget that ended the attempt")
        return spent

    @contextlib.contextmanager
    def _fenced(self, method: str) -> Generator[None]:
        try:
            yield
        except Exception as error:  # someone else's code: whatever it raises is its own failure, and is shown
            if (ours := _ours(error)) is not None:
                raise ours from error.__cause__
            text = "".join(traceback.format_exception(error)).rstrip().splitlines()
            evidence = {"traceback": "\n".join(text[-TRACEBACK_LINES:])}
            raise self._failed(f"{method} raised {user_code.described(error)}", evidence) from error

    def _failed(self, message: str, evidence: dict[str, str] | None = None) -> PlayerError:
        return PlayerError(f"agent.player = {self._name!r}: {message}", evidence)


class _Engine:
    """Implements `engine.port.Engine` for a player that is made before there is one.

    A player that sampled at another temperature would not be the policy that is trained, so it cannot.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self._real: Engine | None = None

    def serve(self, engine: Engine) -> None:
        self._real = engine

    async def generate(self, tokens: Ints, sampling: Sampling, session: Session) -> Completion:
        if sampling.temperature != self._temperature:
            raise PlayerError(
                f"it samples at temperature {sampling.temperature:g}, and the policy that is trained is at "
                f"agent.temperature = {self._temperature:g}: take config.temperature"
            )
        return await self._serving.generate(tokens, sampling, session)

    async def score(self, tokens: Ints, *, temperature: float) -> Scores:
        return await self._serving.score(tokens, temperature=temperature)

    async def statistics(self) -> EngineStatistics:
        return await self._serving.statistics()

    @property
    def _serving(self) -> Engine:
        if self._real is None:
            raise PlayerError("no engine serves yet: call it in play")
        return self._real


def _ours(error: BaseException) -> BoundaryError | JournalError | None:
    """The error that engine, sandbox or record raised; of a group of errors, the first such."""
    if isinstance(error, BoundaryError | JournalError):
        return error
    inner: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return next((found for each in inner if (found := _ours(each)) is not None), None)
