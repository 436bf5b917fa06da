"""A recorded trajectory, played again: the same actions in a fork of the same image, every observation compared.

    Rollout with `Recorded` in the place of the agent: prepare ─► fork ─► recorded commands ─► freeze ─► grade
                                                            exact, same or different ◄─┘           └─► same outcome?

Law: nothing is sampled; the engine takes no part, and all else is the code of any attempt. Replay goes on after a
divergence, and reports the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from muster.errors import SandboxLost
from muster.rollout.actions import describe
from muster.rollout.attempt import Rollout
from muster.rollout.config import AgentConfig
from muster.rollout.port import Between, Episode, Spent
from muster.rollout.renderer import Transcript
from muster.rollout.sameness import Sameness, compare
from muster.rollout.spans import SpanRecorder
from muster.sandbox.pool.pool import Pool
from muster.sandbox.port import Sandbox
from muster.types import Cause, Graded, Launch, Outcome, Session, Task, Trajectory, Turn, Ungraded
from muster.verifier.port import Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One command, then and now."""

    turn: int
    command: str
    recorded: str | None  # None: the journal has no observation, for the sandbox was lost by it
    again: str | None  # None: the sandbox was lost by it
    sameness: Sameness


class Reproduction(StrEnum):
    """Verdict of a replay on a recorded outcome."""

    SAME = "same outcome"
    OTHER = "other outcome"
    REPEATS = "the fault repeats"
    GONE = "the fault does not repeat"
    OUT_OF_REACH = "not replayed: engine and agent take no part in a replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The whole of it. `same_image` is False when the task or the machine's base image changed since."""

    trajectory: Trajectory
    same_image: bool
    steps: tuple[Replayed, ...]
    outcome: Outcome

    @property
    def divergence(self) -> Replayed | None:
        """The first command whose observation differs."""
        return next((step for step in self.steps if step.sameness is Sameness.DIFFERENT), None)

    @property
    def reproduction(self) -> Reproduction:
        then, now = self.trajectory.outcome, self.outcome
        if then.cause in (Cause.ENGINE_FAILED, Cause.PLAYER_FAILED):
            return Reproduction.OUT_OF_REACH
        if isinstance(then, Ungraded):
            return Reproduction.GONE if isinstance(now, Graded) else Reproduction.REPEATS
        same = isinstance(now, Graded) and (now.verdict, now.reward) == (then.verdict, then.reward)
        return Reproduction.SAME if same else Reproduction.OTHER

    @property
    def faithful(self) -> bool:
        """Every observation and the outcome are as recorded; a fault may be gone."""
        return self.divergence is None and self.reproduction is not Reproduction.OTHER


class Replayer:
    """Replays trajectories of a run. `config` must be the run's own: the time-outs are part of what happened.

    Example: `replay = await Replayer(pool=pool, verifier=verifier, config=config.agent).replay(trajectory, task)`
    """

    def __init__(self, *, pool: Pool, verifier: Verifier, config: AgentConfig) -> None:
        self._pool = pool
        self._verifier = verifier
        self._config = config

    async def replay(self, trajectory: Trajectory, task: Task) -> Replay:
        """Never raises for what the world does now: that is the replay's outcome."""
        player = Recorded(trajectory, self._config)
        rollout = Rollout(agent=player, pool=self._pool, verifier=self._verifier)
        launch = Launch(id=f"replay-{trajectory.id}", group_id=trajectory.group_id, task=task, sibling=0)
        again = await rollout.run(launch, SpanRecorder(launch.id))
        images = trajectory.snapshots[:1]
        same_image = not images or again.snapshots[:1] == images
        return Replay(trajectory=trajectory, same_image=same_image, steps=tuple(player.steps), outcome=again.outcome)


class Recorded:
    """Implements `rollout.port.Player`: acts as the trajectory says, and compares what it sees."""

    def __init__(self, trajectory: Trajectory, config: AgentConfig) -> None:
        self.steps: list[Replayed] = []
        self._trajectory = trajectory
        self._config = config

    def begin(self, task: Task) -> Episode:
        return Episode(Transcript([]))

    def instruct(self, episode: Episode, instruction: str) -> None:
        episode.step += 1

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
        turns = [turn for turn in self._trajectory.turns if turn.step == episode.step]
        for turn in turns:
            seen: list[str] = []
            try:
                await self._act(turn, sandbox, seen)
            finally:
                episode.turns.append(replace(turn, observation="\n".join(seen), observations=tuple(seen)))
        return self._spent(turns)

    async def _act(self, turn: Turn, sandbox: Sandbox, seen: list[str]) -> None:
        commands, recorded = turn.commands, turn.observations
        if not commands and turn.command:  # a run of before, which kept them joined
            commands, recorded = (turn.command,), (turn.observation,)
        for command, then in itertools.zip_longest(commands, recorded):
            try:
                seen.append(await self._observe(sandbox, command))
            except SandboxLost:
                same = Sameness.EXACT if then is None else Sameness.DIFFERENT
                self._compared(turn, command, then, None, same)
                raise
            # where the journal has nothing to compare with, the fault that cut the recording short is gone
            same = Sameness.SAME if then is None else compare(then, seen[-1])
            self._compared(turn, command, then, seen[-1], same)

    def _compared(self, turn: Turn, command: str, then: str | None, now: str | None, same: Sameness) -> None:
        self.steps.append(Replayed(turn=turn.index, command=command, recorded=then, again=now, sameness=same))

    async def _observe(self, sandbox: Sandbox, command: str) -> str:
        timeout_s, silence_s = self._config.command_timeout_s, self._config.command_silence_s
        result = await sandbox.run(command, timeout_s, silence_s=silence_s)
        limit_s = silence_s if result.silent and silence_s else timeout_s
        return describe(result, timeout_s=limit_s, limit_chars=self._config.observation_chars)

    def _spent(self, turns: Sequence[Turn]) -> Spent | None:
        """The budget that ended it: as recorded, or else seen by a last turn that still acted."""
        match self._trajectory.outcome.cause:
            case Cause.TURN_BUDGET | Cause.TOKEN_BUDGET | Cause.CONTEXT_BUDGET | Cause.TIME_BUDGET as cause:
                last = turns[-1:] == list(self._trajectory.turns[-1:])
                return cause if last else None
            case _:
                return Cause.TURN_BUDGET if turns and turns[-1].command is not None else None
