"""A reply that arrives in pieces, so that what arrived is not lost with the request that was making it.

    replica ─piece─piece─piece─last─► Pieces ─► Completion ─────────►┐
                       ├─ aborted ─► Completion, finish="abort" ─────►├─► Reply ─► whole
                       └─ breaks ─► EngineError.kept ────────────────►┘     └─► the next request, after what is kept

Law: every piece has its own tokens, log-probabilities and versions; what a piece says of the whole request (times,
cached prefix) replaces what the one before said. A token counts once: it is in one piece, and a piece arrived or not.
A reply goes on here and nowhere else: the next request has fewer tokens to say, and draws other numbers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from muster.engine.port import Engine
from muster.types import Completion, Ints, Sampling, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """New tokens of a reply. `last`: it is complete with them; until then its `finish` is "abort": it may end here."""

    completion: Completion
    last: bool


@runtime_checkable
class Streaming(Protocol):
    """A replica that says what it has sampled while it samples. Errors as `Engine.generate`."""

    def stream(self, tokens: Ints, sampling: Sampling, session: Session) -> AsyncGenerator[Piece]: ...


Stream = Callable[[Ints, Sampling, Session], AsyncGenerator[Piece]]
"""Close what it gives (`aclosing`) to abort the request."""


@dataclass(slots=True)
class Pieces:
    """Collected pieces of one reply.

    Example: `pieces = Pieces(); pieces.add(piece); pieces.completion`
    """

    _parts: list[Completion] = field(default_factory=list[Completion])
    complete: bool = False

    def add(self, piece: Piece) -> None:
        assert not self.complete, "nothing comes after the last piece"
        self._parts.append(piece.completion)
        self.complete = piece.last

    @property
    def completion(self) -> Completion:
        """All that arrived; at least one piece has."""
        newest = self._parts[-1]
        return replace(_concatenated(self._parts), finish=newest.finish, cached_tokens=newest.cached_tokens)

    @property
    def kept(self) -> Completion | None:
        """Completion of what arrived, if any token did."""
        return self.completion if any(len(part.tokens_T) for part in self._parts) else None


def streamed(replica: Engine) -> Stream:
    """Streaming function of a replica: its own, or one that gives the reply in one piece if it has none."""
    return replica.stream if isinstance(replica, Streaming) else partial(_one_piece, replica)


def pieces_of(replica: Engine, tokens: Ints, sampling: Sampling, session: Session) -> AsyncGenerator[Piece]:
    """A reply in pieces, or in one piece from a replica that has none. Close it (`aclosing`) to abort the request."""
    return streamed(replica)(tokens, sampling, session)


def after(completion: Completion, start: int) -> Completion:
    """The tokens from `start` on, with all that is said of the whole request."""
    return replace(
        completion,
        tokens_T=completion.tokens_T[start:],
        logprobs_T=completion.logprobs_T[start:],
        versions_T=completion.versions_T[start:],
    )


class Reply:
    """A reply that several requests may make, each of which goes on after the tokens of those before it.

    Example:
        reply = Reply(prompt, Sampling(max_tokens=200))
        while (whole := reply.whole) is None:
            reply.add(await engine.generate(reply.prompt, reply.sampling, session))
    """

    def __init__(self, prompt: Ints, sampling: Sampling) -> None:
        self.kept: Completion | None = None  # what was said so far, if anything was
        self._prompt, self._sampling = prompt, sampling

    def add(self, part: Completion) -> Completion:
        """Adds what one more request has said, to the end of the reply or not. Returns all that was said."""
        self.kept = part if self.kept is None else _continued(self.kept, part)
        return self.kept

    @property
    def prompt(self) -> Ints:
        """Of the next request."""
        return self._prompt if self.kept is None else np.concatenate([self._prompt, self.kept.tokens_T])

    @property
    def sampling(self) -> Sampling:
        """Of the next request. A seed moves on: the same numbers again would tie the rest to what they have drawn."""
        said = 0 if self.kept is None else len(self.kept.tokens_T)
        seed = None if self._sampling.seed is None else self._sampling.seed + said
        return replace(self._sampling, max_tokens=self._sampling.max_tokens - said, seed=seed)

    @property
    def whole(self) -> Completion | None:
        """The complete reply, if it is, also where only the word that it is complete was lost."""
        kept = self.kept
        if kept is None or kept.finish != "abort":
            return kept
        if len(kept.tokens_T) and kept.tokens_T[-1] in self._sampling.stop_tokens:
            return replace(kept, finish="stop")
        return replace(kept, finish="length") if len(kept.tokens_T) >= self._sampling.max_tokens else None


async def _one_piece(replica: Engine, tokens: Ints, sampling: Sampling, session: Session) -> AsyncGenerator[Piece]:
    yield Piece(completion=await replica.generate(tokens, sampling, session), last=True)


def _continued(kept: Completion, rest: Completion) -> Completion:
    """Times are sums; the cached prefix is the first one's, for the second one's prompt was longer."""
    return replace(
        _concatenated([kept, rest]),
        cached_tokens=kept.cached_tokens,
        queue_s=kept.queue_s + rest.queue_s,
        prefill_s=kept.prefill_s + rest.prefill_s,
        recompute_s=kept.recompute_s + rest.recompute_s,
        decode_s=kept.decode_s + rest.decode_s,
        paused_s=kept.paused_s + rest.paused_s,
    )


def _concatenated(parts: list[Completion]) -> Completion:
    """The newest with the tokens of all."""
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[-1],
        tokens_T=np.concatenate([p.tokens_T for p in parts]),
        logprobs_T=np.concatenate([p.logprobs_T for p in parts]),
        versions_T=np.concatenate([p.versions_T for p in parts]),
    )
