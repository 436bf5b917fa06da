"""What the router learns from turns that ended: how contexts grow, how fast prompts are computed. Pure.

Law: exponential averages with a stated memory, from a stated start, so that the same turns teach the same.
"""

from __future__ import annotations

from dataclasses import dataclass

MEMORY_TURNS = 256
"""A turn this long ago weighs 1/e of the newest: a batch's worth, so that tasks of one kind are remembered."""


@dataclass(slots=True)
class Growth:
    """Mean tokens of a reply and of what comes between a reply and the next turn. The starts are a terminal agent's."""

    reply_tokens: float = 220.0
    observed_tokens: float = 500.0

    @property
    def turn_tokens(self) -> int:
        """What a turn adds to a context."""
        return round(self.reply_tokens + self.observed_tokens)

    def replied(self, tokens: int) -> None:
        self.reply_tokens += (tokens - self.reply_tokens) / MEMORY_TURNS

    def observed(self, tokens: int) -> None:
        self.observed_tokens += (tokens - self.observed_tokens) / MEMORY_TURNS


@dataclass(slots=True)
class PrefillRate:
    """Prompt tokens that a replica computes a second, weighted by tokens: short prompts measure the step instead."""

    tokens: float = 0.0
    seconds: float = 0.0

    def computed(self, tokens: int, seconds: float) -> None:
        """`tokens` of a prompt were computed within `seconds`."""
        keep = 1 - 1 / MEMORY_TURNS
        self.tokens, self.seconds = self.tokens * keep + tokens, self.seconds * keep + seconds

    def per_s(self, otherwise: float) -> float:
        """`otherwise` while nothing is known."""
        return self.tokens / self.seconds if self.seconds > 0 and self.tokens > 0 else otherwise
