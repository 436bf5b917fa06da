"""Configuration of a run: its length, its evaluations, and how groups become batches.

What an option biases is said beside it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Order = Literal["group", "longest", "launch"]
"""Whose launch gets the next slot."""
BatchPolicy = Literal["cohort", "window", "fifo", "greedy"]
"""How far a batch may reach past the oldest unfinished submission."""


class ConcurrencyConfig(BaseModel):
    """Limits of live trajectories, beneath `slots`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Literal["fixed", "memory", "aimd"] = Field(default="fixed", description="what limits them beside slots")
    fill: float = Field(default=1.0, gt=0, description="memory: contexts of live trajectories over the cache's tokens")
    start: int = Field(default=32, ge=1, description="aimd: the first limit")
    increase: int = Field(default=4, ge=1, description="aimd: more after an interval in which the cache held")
    decrease: float = Field(default=0.8, gt=0, lt=1, description="aimd: factor after one in which it did not")
    hit_rate: float = Field(default=0.7, gt=0, lt=1, description="aimd: cached share of prompt tokens that is enough")
    interval_s: float = Field(default=10.0, gt=0, description="aimd: between two looks")
    least: int = Field(default=8, ge=1, description="never fewer than this, whatever the cache says")


class ReuseConfig(BaseModel):
    """Options of reuse: whether and how far earlier successes are used again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    enabled: bool = Field(default=False, description="give earlier successes to groups that have none")
    below: float = Field(
        default=0.1, gt=0, le=1, description="success rate of a task's recent attempts under which it is reused"
    )
    recent_attempts: int = Field(default=64, ge=1, description="attempts at a task that its success rate looks at")
    max_share: float = Field(
        default=0.125, gt=0, le=0.25, description="reused trajectories in a batch, over the fresh ones it needs"
    )
    max_divergence: float = Field(
        default=1.0,
        gt=0,
        description="distance (nats, root-mean-square log-ratio, by the odometer, which tends to read high) beyond "
        "which a success is too old",
    )
    max_uses: int = Field(default=4, ge=1, description="times that one success is reused")
    per_task: int = Field(default=4, ge=1, description="successes kept of a task, the newest")
    capacity: int = Field(default=512, ge=1, description="successes kept in all, the newest; bounds memory")


class LoopConfig(BaseModel):
    """Length and rhythm of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(default=14, ge=1, description="optimiser steps, each on one batch")
    checkpoint_every: int = Field(default=7, ge=1, description="steps between checkpoints")
    evaluate_every: int = Field(default=7, ge=0, description="steps between evaluations; 0: only at the ends")
    watch_interval_s: float = Field(default=1.0, gt=0, description="how often engine statistics are read")
    publish_attempts: int = Field(default=3, ge=1, description="tries to publish a version before the run stops")
    replicas_wait_s: float = Field(
        default=300.0, ge=0, description="how long no replica may answer before the run stops; one may be restarting"
    )


class EvaluateConfig(BaseModel):
    """Options of measuring held-out pass rates."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempts: int = Field(default=1, ge=1, description="samples for each held-out task")
    concurrency: int = Field(default=64, ge=1, description="live evaluation trajectories at once")
    retries: int = Field(default=2, ge=0, description="further launches after an infrastructure failure")


Surplus = Literal["cancel", "carry", "tail"]
"""What becomes of groups that were launched beyond a batch's need, once it is assembled.

cancel  dropped at once: the batch holds what finished first, which is short; the bias ledger shows how short
carry   they go on for the next batch; their lag is bounded as any other's
tail    dropped, and their tasks are tried again in a later batch of only such tasks, without over-launching: the long
        ones are put off, not left out, but tokens are sampled twice
"""


class SchedulerConfig(BaseModel):
    """Options of making batches of groups."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups_per_batch: int = Field(default=8, ge=1, description="complete groups with gradient in a batch")
    group_size: int = Field(default=16, ge=2, description="sibling attempts at one task")
    min_group: int | None = Field(
        default=None, ge=2, description="graded members a group may train with after refills ran out; default: all"
    )
    max_lag: int = Field(
        default=0, ge=0, description="versions a trained token may lie behind the trainer; 0 is on-policy"
    )
    max_divergence: float | None = Field(
        default=None,
        gt=0,
        description="measured distance (nats, root-mean-square log-ratio) of a group's oldest token from the trainer",
    )
    policy: BatchPolicy | None = Field(
        default=None,
        description="how a batch picks ready groups; default: cohort when max_lag is 0 (greedy if over-launched), "
        "else window",
    )
    window_fraction: float = Field(
        default=0.3, gt=0, le=1, description="for policy window: share of pending submissions"
    )
    order: Order = Field(default="group", description="whose launch gets the next slot: group, launch or longest")
    over_launch: float = Field(
        default=1.0, ge=1, le=4, description="groups launched for a batch over those it needs; above 1 biases"
    )
    surplus: Surplus = Field(default="cancel", description="what becomes of groups beyond a batch's need")
    slots: int = Field(default=64, ge=1, description="live trajectories at once")
    concurrency: ConcurrencyConfig = Field(
        default_factory=ConcurrencyConfig,
        description="fewer live trajectories when the engines' cache is short",
    )
    reuse: ReuseConfig = Field(default_factory=ReuseConfig, description="earlier successes for groups that have none")
    max_attempts: int = Field(
        default=3,
        ge=1,
        description="launches of one sibling until it is given up; those lost further on than any before do not count",
    )
    infra_alarm_rate: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="share of infrastructure failures among recent trajectories that stops admission",
    )
    infra_alarm_window: int = Field(default=64, ge=4, description="recent trajectories that the alarm looks at")

    @model_validator(mode="after")
    def _consistent(self) -> SchedulerConfig:
        if self.min_group is not None and self.min_group > self.group_size:
            raise ValueError(f"min_group ({self.min_group}) is larger than group_size ({self.group_size})")
        if self.over_launch > 1 and self.policy in ("cohort", "fifo"):
            raise ValueError(
                f"over_launch ({self.over_launch}) has no effect with policy {self.policy!r}, where nothing overtakes; "
                "choose policy = 'greedy' or 'window', or over_launch = 1"
            )
        if self.over_launch > 1 and self.surplus == "carry" and self.max_lag == 0:
            raise ValueError("surplus = 'carry' needs max_lag of at least 1: the next batch has the next version")
        if self.surplus == "tail" and self.max_lag > 0:
            raise ValueError("surplus = 'tail' needs max_lag = 0; with a lag, 'carry' keeps the long ones at less cost")
        return self

    @property
    def batch_policy(self) -> BatchPolicy:
        if self.policy is not None:
            return self.policy
        if self.max_lag > 0:
            return "window"
        return "greedy" if self.over_launch > 1 else "cohort"
