"""One request inside the emulated engine: what it asked, and what it will say.

Law: the reply is known when it is first admitted; `made` tokens of it exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from muster.engine.phases import Finish, RequestTime
from muster.lab.emulated.radix import Node
from muster.lab.emulated.replies import WINDOW, logprobs_of
from muster.types import Completion, Floats, Ints, Sampling, Session, Version

Done = Callable[[Completion], None]


@dataclass(slots=True, eq=False)
class EmulatedRequest:
    """Request: `prompt` and the first `made` tokens of `reply`; `path` of them lie in the prefix cache."""

    id: str
    prompt: Ints
    sampling: Sampling
    session: Session
    done: Done
    time: RequestTime
    reply: Ints | None = None
    finish: Finish = "length"
    made: int = 0
    cached_tokens: int = 0
    ended: bool = False
    node: Node[EmulatedRequest] | None = None  # where its lock is; None: not in the batch
    path: int = 0  # tokens from the root to the end of `node`
    filled: int = 0  # tokens of the sequence that are computed, while it is prefilled
    joined: int = 0  # while it decodes: `made` less the batch's step counter
    entry: int = -1  # while it decodes: which of the batch's entries is its own
    recomputes_to: int = 0  # tokens up to here were computed before
    marks: list[tuple[int, Version]] = field(default_factory=list[tuple[int, Version]])  # (first token, its version)
    followers: list[EmulatedRequest] = field(default_factory=list["EmulatedRequest"])  # wait for its prompt

    @property
    def decoding(self) -> bool:
        return self.entry >= 0

    @property
    def length(self) -> int:
        return len(self.prompt) + self.made

    @property
    def sequence(self) -> Ints:
        return self.part(0, self.length)

    def part(self, start: int, end: int) -> Ints:
        """Tokens `start` to `end` of its sequence. Copies only what lies on both sides of the prompt's end."""
        size = len(self.prompt)
        if end <= size:
            return self.prompt[start:end]
        assert self.reply is not None, "beyond the prompt lies the reply"
        if start >= size:
            return self.reply[start - size : end - size]
        return np.concatenate([self.prompt[start:], self.reply[: end - size]])

    def mark(self, version: Version) -> None:
        """Tokens from here on are sampled by `version`."""
        self.marks.append((self.made, version))

    def completion(self, finish: Finish, replica: str, *, logprobs: bool = True) -> Completion:
        """logprobs: make them up; else they are 0."""
        size = len(self.prompt)
        ends = [first for first, _ in self.marks[1:]] + [self.made]
        spans = [(first, end, version) for (first, version), end in zip(self.marks, ends, strict=bool(self.marks))]
        made_up = spans if logprobs else []
        parts = [self._logprobs(size + first, size + end, version) for first, end, version in made_up]
        versions = [np.full(end - first, version.number, dtype=np.int32) for first, end, version in spans]
        return Completion(
            tokens_T=self.part(size, size + self.made).copy(),
            logprobs_T=np.concatenate(parts) if parts else np.zeros(self.made, np.float32),
            versions_T=np.concatenate(versions) if versions else np.zeros(0, np.int32),
            finish=finish,
            cached_tokens=self.cached_tokens,
            replica=replica,
            **self.time.seconds(),
        )

    def _logprobs(self, start: int, end: int, version: Version) -> Floats:
        before = max(0, start - WINDOW)
        tokens = self.part(before, end)
        return logprobs_of(tokens, version, self.sampling.temperature, start=start - before, position=before)
