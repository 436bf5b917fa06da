"""One request inside the engine: its tokens, and what it has sampled."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from muster.engine.embedded.prefix_cache import Slot
from muster.engine.phases import Finish, RequestTime
from muster.types import Completion, Ints, Sampling, Session


@dataclass(slots=True, eq=False)
class Request:
    """Live request. `tokens_C[:length]` is the prompt and what was sampled so far; the rest is room to grow."""

    id: str
    session: Session
    sampling: Sampling
    tokens_C: Ints
    prompt_len: int
    length: int
    rng: np.random.Generator
    time: RequestTime
    slot: Slot | None = None
    cached_tokens: int = 0
    started: bool = False  # was ever given a slot
    recomputes_to: int = 0  # tokens up to here were computed before, under other weights
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[int] = field(default_factory=list[int])

    @classmethod
    def of(
        cls, request_id: str, tokens: Ints, sampling: Sampling, session: Session, *, max_len: int,
        rng: np.random.Generator, time: RequestTime,
    ) -> Request:  # fmt: skip
        """A new request. Its room ends at `max_len` or at its own `max_tokens`."""
        room = np.zeros(min(max_len, len(tokens) + sampling.max_tokens), dtype=np.int32)
        room[: len(tokens)] = tokens
        return cls(
            id=request_id, session=session, sampling=sampling, tokens_C=room, prompt_len=len(tokens),
            length=len(tokens), rng=rng, time=time,
        )  # fmt: skip

    @property
    def tokens(self) -> Ints:
        return self.tokens_C[: self.length]

    @property
    def pending(self) -> int:
        """Tokens to feed before the next one can be sampled; 0 without a slot."""
        return self.length - self.slot.filled if self.slot else 0

    def append(self, token: int, logprob: float, version: int) -> Finish | None:
        """Take a sampled token; the reason if it was the last."""
        self.tokens_C[self.length] = token
        self.length += 1
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token in self.sampling.stop_tokens:
            return "stop"
        return "length" if self.length == len(self.tokens_C) else None

    def completion(self, finish: Finish, replica: str) -> Completion:
        return Completion(
            tokens_T=self.tokens[self.prompt_len :].copy(),
            logprobs_T=np.array(self.logprobs, dtype=np.float32),
            versions_T=np.array(self.versions, dtype=np.int32),
            finish=finish,
            cached_tokens=self.cached_tokens,
            replica=replica,
            **self.time.seconds(),
        )
