"""The player port: who acts in a sandbox, and what is left of it.

    begin(task) ─► Episode ─► play ─► ended by itself (None), or by a budget ─► frozen and graded
                      ▲ instruct: the next step of a task of several ─┘

`agent.Agent` is Muster's own, `replay.Recorded` plays a trajectory again, and `agent.player` names a user's.

Law: a player says what was sampled, what was run and how it ended. It judges nothing. What it holds of an attempt is in
the episode alone: there it survives an error, a keep point and the process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from muster.engine.port import Engine
from muster.rollout.config import AgentConfig
from muster.rollout.renderer import Renderer, Transcript
from muster.rollout.spans import SpanRecorder
from muster.sandbox.port import Sandbox
from muster.types import Cause, Session, Task, Turn

Spent = Literal[Cause.TURN_BUDGET, Cause.TOKEN_BUDGET, Cause.CONTEXT_BUDGET, Cause.TIME_BUDGET]
"""The budget that ended a trajectory."""

Between = Callable[[], Awaitable[None]]
"""Called between two turns: nothing of the agent's is under way."""


@dataclass(slots=True)
class Episode:
    """A trajectory while it is played. What it holds survives an error halfway: a model that destroyed its
    sandbox is graded on the tokens that did it."""

    transcript: Transcript
    turns: list[Turn] = field(default_factory=list[Turn])
    stopped: bool = True  # the last reply ended with a stop token
    step: int = 0  # of a task of several steps
    spent_s: float = 0.0  # of the step's time budget, in whole turns

    @property
    def sampled_tokens(self) -> int:
        return sum(turn.sampled_tokens for turn in self.turns)


class Player(Protocol):
    """Plays attempts; one object plays all of a run, any number at once, on one event loop.

    Errors of engine and sandbox (`EngineError`, `SandboxError`) pass through: they decide who is to blame. Anything
    else that a player of a user's raises ends its attempt as INFRA, `player_failed`: shown, launched again, and never
    trained. So what the model can provoke, such as a reply that cannot be read, must be an observation for the model.
    """

    def begin(self, task: Task) -> Episode:
        """The first tokens of an attempt: what the model is told, up to where it begins to speak.

        The same task gives the same tokens. At the first task they are also what engine and trainer must score alike
        after each publication.
        """
        ...

    def instruct(self, episode: Episode, instruction: str) -> None:
        """Go on with the next step of a task of several: `step` grows by one, its budget of time begins anew."""
        ...

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
        """Play until the model says that it is done (None) or a budget is spent (which one).

        `task`: what to do; of several steps, the present one. Its limits: turns, and seconds of the model's own time.
        `episode`: what `begin` gave, or what an earlier process kept, with the turns that were played. Tokens that an
        engine sampled are appended with `transcript.sampled`, all others with `transcript.observed`; each turn is
        appended to `turns`, also when its command ended the sandbox.
        `session`: goes with each request to the engine, which keeps an attempt's cache by it.
        `spans`: told of each wait before it begins, so that the report can say where the time went.
        `seed`: of the first request; None: sampling need not repeat.
        `between`: awaited between two turns, when `episode` holds all there is to know and nothing is under way. There
        an attempt is kept, and gives way to others. It may be left out: such an attempt always begins at the beginning.
        """
        ...


class MakePlayer(Protocol):
    """A class of players, or a function that makes one. Called once in a run, before any engine serves.

    Example: a frozen, keyword-only dataclass with the fields `engine`, `renderer` and `config`.
    """

    def __call__(self, *, engine: Engine, renderer: Renderer, config: AgentConfig) -> Player:
        """`engine`: all replicas as one; to be called in `play` alone. `renderer`: messages to tokens, with the model's
        own chat template. `config`: the section `[agent]`, of which a player keeps to what concerns it."""
        ...
