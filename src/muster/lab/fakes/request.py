"""Request of a fake replica, and its reading of token ids. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from muster.types import Ints


@dataclass(slots=True, eq=False)
class FakeRequest:
    """A reply being decoded: `done` of its `reply` tokens exist, with their versions."""

    tokens: Ints
    reply: Ints
    salt: int  # when it started; only requests of one salt share cache
    versions: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    aborted: bool = False
    recompute: bool = False
    decoding_since: float | None = None  # tokens made since are not among `versions` yet
    spent_s: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def sequence(self) -> Ints:
        return np.concatenate([self.tokens, self.reply[: len(self.versions)]])


def cut(reply: Sequence[int], stops: Sequence[int], room: int) -> tuple[Sequence[int], Literal["stop", "length"]]:
    """The reply up to its first stop token or the end of the room."""
    shown = reply[:room]
    ends = [shown.index(stop) for stop in stops if stop in shown]
    if ends:
        return shown[: min(ends) + 1], "stop"
    return shown, "length" if len(reply) >= room else "stop"


def common(seen: Ints, tokens: Ints) -> int:
    """Common beginning, leaving at least the last token to compute."""
    length = min(len(seen), len(tokens) - 1)
    different = seen[:length] != tokens[:length]
    return int(different.argmax()) if different.any() else length
