"""A reply that arrives in pieces, so that what arrived is not lost with the replica that was making it.

    replica ─piece─piece─piece─last─► Pieces ─► Completion
                       └─ breaks ─► EngineError.kept ─► the same turn goes on elsewhere, after the kept tokens

Law: every piece has its own tokens, log-probabilities and versions; what a piece says of the whole request (times,
cached prefix) replaces what the one before said. A token counts once: it is in one piece, and a piece arrived or not.
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


def continued(kept: Completion, rest: Completion) -> Completion:
    """One completion of a reply that was begun by one request and ended by another one.

    Times are sums; the cached prefix is the first one's, for the second one's prompt was longer.
    """
    return replace(
        _concatenated([kept, rest]),
        finish=rest.finish,
        cached_tokens=kept.cached_tokens,
        queue_s=kept.queue_s + rest.queue_s,
        prefill_s=kept.prefill_s + rest.prefill_s,
        recompute_s=kept.recompute_s + rest.recompute_s,
        decode_s=kept.decode_s + rest.decode_s,
        paused_s=kept.paused_s + rest.paused_s,
    )


def ending(kept: Completion, sampling: Sampling) -> Completion | None:
    """`kept` as a complete reply, if only the word that it was complete is missing."""
    if kept.tokens_T[-1] in sampling.stop_tokens:
        return replace(kept, finish="stop")
    if len(kept.tokens_T) >= sampling.max_tokens:
        return replace(kept, finish="length")
    return None


def remaining(sampling: Sampling, kept: int) -> Sampling:
    """For the rest of a reply of which `kept` tokens exist. A seed moves on: the same numbers again would tie the rest
    to what they have drawn already.
    """
    seed = None if sampling.seed is None else sampling.seed + kept
    return replace(sampling, max_tokens=sampling.max_tokens - kept, seed=seed)


async def _one_piece(replica: Engine, tokens: Ints, sampling: Sampling, session: Session) -> AsyncGenerator[Piece]:
    yield Piece(completion=await replica.generate(tokens, sampling, session), last=True)


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
