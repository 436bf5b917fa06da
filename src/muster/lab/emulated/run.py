"""A run of tokens that is appended to, cut and split without copying. Pure.

Law: a run is pieces, each a view of the array it came in. A turn of a conversation is compared with what is cached
once, and never moved: at a hundred thousand tokens of context a copy would cost more than everything else in the
emulated server. Views of the same memory are equal without a look, so a caller whose prompts are slices of one array
pays the same at any length. Nobody may write to tokens that were handed over.
"""

from __future__ import annotations

import numpy as np

from muster.types import Ints

_LOOK = 2048
"""Tokens up to which comparing is cheaper than asking numpy where they lie."""


class TokenRun:
    """Tokens in order.

    Example: `run = TokenRun(prompt); run.append(reply); run.common(next_prompt) == len(prompt) + len(reply)`
    """

    __slots__ = ("_length", "_pieces")

    def __init__(self, tokens: Ints) -> None:
        self._pieces = [tokens] if len(tokens) else []
        self._length = len(tokens)

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> Ints:
        """All of them, copied."""
        return np.concatenate(self._pieces) if self._pieces else np.zeros(0, np.int32)

    def append(self, tokens: Ints) -> None:
        self._pieces.append(tokens)
        self._length += len(tokens)

    def keep(self, length: int) -> None:
        """Forget all but the first `length`."""
        while self._length > length:
            last = self._pieces.pop()
            self._length -= len(last)
            if self._length < length:
                self.append(last[: length - self._length])

    def cut(self, at: int) -> TokenRun:
        """Take the first `at` away; returns them."""
        head = TokenRun(self._pieces[0][:0])
        while len(head) < at:
            piece, missing = self._pieces[0], at - len(head)
            head.append(piece[:missing])
            if missing < len(piece):
                self._pieces[0] = piece[missing:]
            else:
                del self._pieces[0]
        self._length -= at
        return head

    def start(self, count: int) -> bytes:
        """The first `count`, which are in one piece, as a key."""
        return self._pieces[0][:count].tobytes()

    def common(self, tokens: Ints) -> int:
        """Number of its first tokens that are those of `tokens`."""
        at = 0
        for piece in self._pieces:
            shared = _common(piece, tokens[at : at + len(piece)])
            at += shared
            if shared < len(piece):
                break
        return at

    def lies_in(self, tokens: Ints) -> int:
        """Number of its first tokens that are the very memory of `tokens`."""
        at = 0
        for piece in self._pieces:
            if not _same_memory(piece, tokens[at : at + len(piece)]):
                break
            at += min(len(piece), len(tokens) - at)
        return at


def _common(a: Ints, b: Ints) -> int:
    length = min(len(a), len(b))
    if not length or (length > _LOOK and _same_memory(a, b)):
        return length
    different = a[:length] != b[:length]
    first = int(different.argmax())
    return first if different[first] else length


def _same_memory(a: Ints, b: Ints) -> bool:
    """Whether two contiguous arrays begin at the same place."""
    if a.base is not b.base or a.base is None or not len(b):
        return False
    return a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
