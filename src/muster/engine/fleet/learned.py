"""Estimates that the router learns from ended turns: growth of contexts, speed of prefill. Pure.

Law: plain means at first, then exponential ones with a stated memory, so that the same turns teach the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MEMORY_TURNS = 256
"""A turn this long ago weighs 1/e of the newest: a batch's worth, so that tasks of one kind are remembered."""


PACE_TURNS = 64
"""How fast a replica is depends on who is there: the last turns count. Fewer would measure their prompts."""


@dataclass(slots=True)
class LearnedMean:
    """Mean of what was seen; `value` before anything was is a guess, which the first sight replaces."""

    value: float
    seen: int = 0

    def saw(self, value: float) -> None:
        self.seen = min(self.seen + 1, MEMORY_TURNS)
        self.value += (value - self.value) / self.seen


@dataclass(slots=True)
class Growth:
    """Tokens of a reply, and of what comes between a reply and the next turn. The guesses are a terminal agent's."""

    replied: LearnedMean = field(default_factory=lambda: LearnedMean(220.0))
    observed: LearnedMean = field(default_factory=lambda: LearnedMean(500.0))

    @property
    def reply_tokens(self) -> int:
        return round(self.replied.value)

    @property
    def turn_tokens(self) -> int:
        """Mean number of tokens that a turn adds to a context."""
        return round(self.replied.value + self.observed.value)


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


@dataclass(slots=True)
class LearnedPace:
    """Seconds that a replica takes for each token it samples now, all that a turn waits for included."""

    tokens: float = 0.0
    seconds: float = 0.0

    def saw(self, tokens: int, seconds: float) -> None:
        """A turn of `tokens` took `seconds`."""
        keep = 1 - 1 / PACE_TURNS
        self.tokens, self.seconds = self.tokens * keep + tokens, self.seconds * keep + seconds

    def each(self) -> float:
        return self.seconds / self.tokens if self.tokens else 0.0
