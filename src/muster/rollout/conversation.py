"""Beginning of a trajectory: the prompt's fixed messages, then the task."""

from __future__ import annotations

from typing import Literal

from muster.rollout import prompts
from muster.rollout.renderer import Message

PromptName = Literal["starter", "zero_shot"]


def conversation(prompt: PromptName, instruction: str) -> list[Message]:
    """`starter` is few-shot, for small models; `zero_shot` explains the protocol to models that can follow it."""
    fixed = prompts.STARTER_PROMPT if prompt == "starter" else prompts.ZERO_SHOT_PROMPT
    return [*({"role": m["role"], "content": m["content"]} for m in fixed), {"role": "user", "content": instruction}]
