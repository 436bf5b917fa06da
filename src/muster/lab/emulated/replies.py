"""Replies of a replica without a model: from a function, a script or a hash; log-probabilities from a hash.

Law: fixed functions of the sequence, the version and the temperature, so that `score` repeats exactly what `generate`
reported, in any process. All of it is made up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from muster.types import Floats, Ints, Session, Version

Policy = Callable[[Ints, Session, Version], Sequence[int] | Ints]
"""(prompt, session, version at the start) -> the reply's token ids; cut at a stop token or where the room ends."""

_FIRST_ID = 3
"""Made-up token ids start here: lower ones are special tokens of most vocabularies."""

_U64 = npt.NDArray[np.uint64]
_ODD = np.uint64(0x9E3779B97F4A7C15)


WINDOW = 128
"""What is made up depends on so many tokens before it, and on its position: all of them would cost time that grows
with the context."""


def made_up(prompt: Ints, count: int, vocabulary: int, *, salt: str = "") -> Ints:
    """`count` token ids, a fixed function of prompt and salt: what a request says when nobody wrote a policy."""
    before = max(0, len(prompt) - WINDOW)
    start = _digests(prompt[before:], len(prompt) - before - 1, before)[0] ^ _text(salt)
    ids = _mixed(start + np.arange(1, count + 1, dtype=np.uint64) * _ODD) % np.uint64(vocabulary - _FIRST_ID)
    return ids.astype(np.int32) + np.int32(_FIRST_ID)


def logprobs_of(tokens: Ints, version: Version, temperature: float, *, start: int = 0, position: int = 0) -> Floats:
    """A log-probability for each token from `start` on, given those before it. Of a sequence's very first it is 0.

    position: where `tokens` begins in its sequence; if not at the beginning, `WINDOW` tokens must precede `start`.
    """
    salt = _text(f"{version.number}|{version.digest}|{temperature!r}")
    mixed = (_digests(tokens, start, position) ^ salt) * _ODD
    logprobs_T = np.float32(-0.05) - (mixed >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
    if start == position == 0 and len(logprobs_T):
        logprobs_T[0] = 0.0
    return logprobs_T


@dataclass(slots=True)
class ReplyScript:
    """A policy that replays: each session's turns have replies, or lengths of made-up replies, given beforehand.

    replies: (session id, turn) -> token ids, or how many tokens to make up; None: the script has ended, which is
    answered by one token. A turn is told from a retry or the rest of an aborted reply by the length of the prompt, so
    one script may be shared by all replicas of a fleet, and every arm of a comparison says the same. `max_tokens`
    must leave room for the whole reply: one that it cuts is taken for aborted.

    Example: `ReplyScript(lambda session, turn: [120, 40, 300][turn] if turn < 3 else None, vocabulary=32768)`
    """

    replies: Callable[[str, int], Sequence[int] | Ints | int | None]
    vocabulary: int = 32_768
    _turns: dict[str, _Turn] = field(init=False, default_factory=dict[str, "_Turn"])

    def __call__(self, tokens: Ints, session: Session, version: Version) -> Sequence[int] | Ints:
        turn = self._turns.get(session.id)
        said = len(tokens) - turn.starts_at if turn else 0
        if turn is None or not 0 <= said < len(turn.reply):
            turn = self._next(tokens, session.id, 0 if turn is None else turn.index + 1)
            said = 0
        return turn.reply[said:]

    def forget(self, session: str) -> None:
        """The session has ended; a later one of that name starts at turn 0."""
        self._turns.pop(session, None)

    def _next(self, tokens: Ints, session: str, index: int) -> _Turn:
        reply = self.replies(session, index)
        if reply is None or isinstance(reply, int):
            reply = made_up(tokens, max(1, reply or 1), self.vocabulary, salt=session)
        self._turns[session] = turn = _Turn(index=index, starts_at=len(tokens), reply=reply)
        return turn


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    index: int
    starts_at: int  # length of the prompt when it was first asked
    reply: Sequence[int] | Ints


def _digests(tokens: npt.NDArray[np.integer], start: int, position: int) -> _U64:
    """For each token from `start` on a digest of it and the `WINDOW` before it, wrapping at 64 bits.

    A sum of token times a multiplier of its position; of the window, as a difference of two running sums.
    """
    first = max(0, start - WINDOW)
    end = position + len(tokens)
    multipliers = _multipliers(1 << end.bit_length())[position + first : end]
    sums = np.cumsum((tokens[first:].astype(np.uint64) + np.uint64(1)) * multipliers, dtype=np.uint64)
    digests = sums[start - first :].copy()
    beyond = WINDOW + 1  # the first sum that holds more than a window
    digests[beyond - (start - first) :] -= sums[: max(0, len(sums) - beyond)]
    return digests


@lru_cache
def _multipliers(size: int) -> _U64:
    """One for each position; callers ask for powers of two, so that few tables exist."""
    table = _mixed(np.arange(1, size + 1, dtype=np.uint64))
    table.flags.writeable = False
    return table


def _mixed(x: _U64) -> _U64:
    """Every bit of the result depends on every bit of `x` (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _text(text: str) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little"))
