"""Workload of a batch: programs that are played, so that every arm of a comparison does the same work.

    WorkloadConfig, seed, group number ─► one Program a sibling: turns of (reply tokens, command seconds, observation)

Law: pure. A group's programs depend on the configuration, the seed and the group's number, and on nothing else, so that
any number of groups can be asked for, in any order, in any process. Lengths are lognormal and capped, as agents and
harnesses cap them; a program ends early when its context is full.

How alike siblings are: the logarithm of a program's number of turns is a sum of the task's part and its own,

    log turns = log median + sigma · (√c · task + √(1 - c) · own)        task, own ~ N(0, 1)

so that the spread over all programs is `sigma` whatever the share `c` (`shared_variance`) that siblings have in common.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

_NORMAL = NormalDist()


class Lognormal(BaseModel):
    """A capped lognormal; `sigma` 0 is a constant. Example: `Lognormal(median=0.85, sigma=2.0, cap=60.0).draw(rng)`"""

    model_config = ConfigDict(frozen=True, extra="forbid")

    median: float = Field(ge=0, description="half of the draws lie below it")
    sigma: float = Field(default=0.0, ge=0, description="standard deviation of the logarithm")
    cap: float = Field(default=math.inf, gt=0, description="no draw is larger")

    def draw(self, rng: np.random.Generator) -> float:
        return self.at(float(rng.standard_normal()))

    def at(self, deviations: float) -> float:
        """The value so many standard deviations above the median."""
        return min(self.cap, self.median * math.exp(self.sigma * deviations))

    def quantile(self, share: float) -> float:
        """The value below which a share in (0, 1) of the draws lies."""
        return self.at(_NORMAL.inv_cdf(share))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTurn:
    """The model samples `reply_tokens`; its command runs for `tool_s` and shows `observation_tokens`."""

    reply_tokens: int
    observation_tokens: int
    tool_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One sibling's attempt, as it goes when nothing fails. `prompt_tokens` are shared by the group, the first
    `common_tokens` of them by all groups.

    `seed`: of what befalls its attempts from outside (see `programs.Mishaps`).
    """

    turns: tuple[PlannedTurn, ...]
    prompt_tokens: int
    verify_s: float
    reward: float
    seed: int = 0
    common_tokens: int = 0

    @property
    def sampled_tokens(self) -> int:
        return sum(turn.reply_tokens for turn in self.turns)

    @property
    def final_tokens(self) -> int:
        """Length of the context at the end."""
        return self.prompt_tokens + sum(t.reply_tokens + t.observation_tokens for t in self.turns)

    @property
    def tool_s(self) -> float:
        return sum(turn.tool_s for turn in self.turns)


class WorkloadConfig(BaseModel):
    """Distributions of a batch's work. The defaults are published figures of terminal agents, see `bench/ttb.toml`.

    Example: `WorkloadConfig(groups=4, group_size=2, turns=Lognormal(median=5, sigma=0.5, cap=10))`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: int = Field(default=32, ge=1, description="groups of a batch")
    group_size: int = Field(default=8, ge=2, description="siblings of a group")
    turns: Lognormal = Field(default=Lognormal(median=20, sigma=1.3, cap=100), description="turns of a program")
    shared_variance: float = Field(
        default=0.6, ge=0, le=1, description="share of the log-variance of turns that siblings have in common"
    )
    prompt_tokens: Lognormal = Field(
        default=Lognormal(median=1500, sigma=0.5, cap=8000), description="system prompt and task"
    )
    reply_tokens: Lognormal = Field(default=Lognormal(median=220, sigma=1.1, cap=4096), description="a turn")
    observation_tokens: Lognormal = Field(default=Lognormal(median=900, sigma=1.2, cap=3000), description="a turn")
    max_context_tokens: int = Field(default=122_880, ge=16, description="a program ends before its context is longer")
    tool_s: Lognormal = Field(default=Lognormal(median=0.85, sigma=2.5, cap=180.0), description="a command")
    verify_s: Lognormal = Field(default=Lognormal(median=2.0, sigma=1.5, cap=300.0), description="one verification")
    solve_slope: float = Field(
        default=0.5, ge=0, description="how much less often long tasks are solved: logits a standard deviation"
    )
    no_gradient: float = Field(
        default=0.0, ge=0, le=1, description="share of groups whose siblings all have the same reward"
    )

    @model_validator(mode="after")
    def _consistent(self) -> WorkloadConfig:
        turn = 1 + self.prompt_tokens.cap
        if self.max_context_tokens < turn:
            raise ValueError(
                f"max_context_tokens = {self.max_context_tokens} holds no reply after a prompt of {turn - 1:g} tokens"
            )
        return self


def programs(config: WorkloadConfig, seed: int) -> tuple[tuple[Program, ...], ...]:
    """The batch: [group][sibling]."""
    return tuple(group_programs(config, seed, group) for group in range(config.groups))


def group_programs(config: WorkloadConfig, seed: int, group: int, *, visit: int = 0) -> tuple[Program, ...]:
    """The siblings of group number `group`, which may lie beyond the batch.

    visit: another one is another group of attempts at the same task, such as an earlier epoch made.
    """
    of_task, rng = np.random.default_rng([seed, group]), np.random.default_rng([seed, group, visit])
    task = float(of_task.standard_normal())
    prompt_tokens = max(1, round(config.prompt_tokens.draw(of_task)))
    rewards = _rewards(config, task, rng)
    return tuple(
        Program(
            turns=_turns(config, task, prompt_tokens, rng),
            prompt_tokens=prompt_tokens,
            verify_s=config.verify_s.draw(rng),
            reward=reward,
            seed=zlib.crc32(f"{seed}/{group}/{visit}/{sibling}".encode()),
        )
        for sibling, reward in enumerate(rewards)
    )


def _turns(
    config: WorkloadConfig, task: float, prompt_tokens: int, rng: np.random.Generator
) -> tuple[PlannedTurn, ...]:
    shared = config.shared_variance
    deviations = math.sqrt(shared) * task + math.sqrt(1 - shared) * float(rng.standard_normal())
    count = max(1, round(config.turns.at(deviations)))
    turns: list[PlannedTurn] = []
    room = config.max_context_tokens - prompt_tokens
    for _ in range(count):
        reply = max(1, round(config.reply_tokens.draw(rng)))
        observation = max(1, round(config.observation_tokens.draw(rng)))
        tool_s = config.tool_s.draw(rng)
        if turns and reply + observation > room:
            break
        reply = min(reply, room)
        observation = min(observation, room - reply)
        turns.append(PlannedTurn(reply_tokens=reply, observation_tokens=observation, tool_s=tool_s))
        room -= reply + observation
    return tuple(turns)


def _rewards(config: WorkloadConfig, task: float, rng: np.random.Generator) -> list[float]:
    """Long tasks are solved less often. A group has a gradient unless it is one of those that shall have none."""
    solve_rate = 1 / (1 + math.exp(config.solve_slope * task))
    flat = float(rng.random()) < config.no_gradient
    rewards = [float(x) for x in rng.random(config.group_size) < solve_rate]
    if flat:
        return [rewards[0]] * config.group_size
    if len(set(rewards)) == 1:
        rewards[int(rng.integers(config.group_size))] = 1.0 - rewards[0]
    return rewards
