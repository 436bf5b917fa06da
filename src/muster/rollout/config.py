"""Configuration of the agent."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from muster.rollout.actions import FormatName
from muster.rollout.conversation import PromptName


class AgentConfig(BaseModel):
    """Options of the policy. Engine and trainer read the temperature from here: it is part of the policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    player: str | None = Field(
        default=None, description="an own agent, module:class, in place of Muster's: see `muster.Player`"
    )
    player_timeout_s: float = Field(
        default=3600.0, gt=0, description="one attempt of an own agent, all waiting included; then it has failed"
    )
    prompt: PromptName = Field(default="starter", description="few-shot prompt of the starter model, or zero-shot")
    action_format: FormatName = Field(default="fenced", description="how the model writes a command")
    temperature: float = Field(default=0.7, gt=0, description="the policy is softmax(logits / temperature)")
    max_turns: int = Field(default=6, ge=1, description="replies in one trajectory; a task may set fewer")
    max_tokens_per_turn: int = Field(default=40, ge=1, description="sampled tokens in one reply")
    max_tokens: int = Field(default=512, ge=1, description="sampled tokens in one trajectory")
    max_context_tokens: int = Field(default=1024, ge=16, description="tokens the trajectory may hold in all")
    command_timeout_s: float = Field(default=5.0, gt=0, description="one command; the model is told when it ran out")
    command_silence_s: float | None = Field(
        default=None, gt=0, description="one command without any output; the model is told; None: no such limit"
    )
    time_budget_s: float = Field(default=120.0, gt=0, description="the model's own time in one trajectory")
    reference_tokens_per_s: float = Field(
        default=50.0,
        gt=0,
        description="rate at which sampled tokens are charged to the time budget, whatever the engine did",
    )
    observation_chars: int = Field(default=1500, ge=16, description="output shown to the model; head and tail are kept")
    keep_every_s: float = Field(
        default=30.0,
        ge=0,
        description="the model's own time from one keep point to the next: what is lost to infrastructure at most, "
        "since an attempt is continued from its last one; 0: always from the beginning",
    )
