"""The renderer: messages to tokens, and only in that direction.

Law: tokens are law. The ids an engine sampled are kept as they are; an observation is rendered alone and its
ids are appended. Nothing sampled is ever decoded and encoded again. What a message says is data: the spelling of a
special token inside it stays ordinary text, so no file or tool output can end a turn or open another.

    prompt(messages) ─► ids ─► engine ─► sampled ids ─┐
             Transcript: [prompt | sampled | observation | sampled | …]   one append-only segment
                    observation(messages) ─► ids ─────┘
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from muster.types import UNSAMPLED, Completion, Floats, Ints, Segment

Message = Mapping[str, str]

_Scalar = TypeVar("_Scalar", bound=np.generic)
_MARK = re.compile("\ue000(\\d+)\ue001")
_PROBE: tuple[Message, ...] = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "a"})


class Tokenizer(Protocol):
    """Tokenizer with a chat template, as the renderer needs it. `stop_tokens` end an assistant's turn."""

    @property
    def stop_tokens(self) -> tuple[int, ...]: ...

    def encode(self, text: str) -> list[int]:
        """Recognises the spelling of special tokens: for what the template wrote."""
        ...

    def encode_plain(self, text: str) -> list[int]:
        """Recognises none: for what people, models and programs wrote."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str: ...


class Renderer:
    """Renders with a model's own chat template.

    Raises `ValueError` at construction when the template rewrites history (an earlier assistant turn rendered
    differently once a later message follows), because then tokens could not be append-only.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.stop_tokens = tokenizer.stop_tokens
        self._stop_texts = tuple(tokenizer.decode([t]) for t in tokenizer.stop_tokens)
        self._closed = tokenizer.render(_PROBE, add_generation_prompt=False)
        self._turn_end = self._after_last_stop(self._closed)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The whole conversation so far, up to where the assistant begins to speak."""
        return self._encode(self._tokenizer.render(_marked(messages), add_generation_prompt=True), messages)

    def observation(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """Ids that follow a sampled turn: its end, `messages` rendered in one go, and the assistant's opening.

        stopped: the sampled ids end with a stop token. When they were cut short, the stop token is added here,
        unsampled.
        """
        whole = self._tokenizer.render([*_PROBE, *_marked(messages)], add_generation_prompt=True)
        if not whole.startswith(self._closed):
            raise ValueError("the chat template rewrites earlier turns; token sequences cannot be append-only")
        ids = self._encode(self._turn_end + whole[len(self._closed) :], messages)
        return ids if stopped else [self.stop_tokens[0], *ids]

    def text(self, tokens: Sequence[int]) -> str:
        """Text of a sampled turn, without its stop token. For parsing and for people, never for training."""
        ids = list(tokens)
        if ids and ids[-1] in self.stop_tokens:
            ids.pop()
        return self._tokenizer.decode(ids)

    def _encode(self, rendered: str, messages: Sequence[Message]) -> list[int]:
        """Ids of a rendering of `_marked(messages)`, with every mark replaced by what its message says."""
        ids: list[int] = []
        for index, piece in enumerate(_MARK.split(rendered)):
            is_mark = index % 2 == 1
            ids += (
                self._tokenizer.encode_plain(messages[int(piece)]["content"])
                if is_mark
                else self._tokenizer.encode(piece)
            )
        return ids

    def _after_last_stop(self, closed: str) -> str:
        """Text that the template puts between an assistant's stop token and the next message (often a newline)."""
        for stop in self._stop_texts:
            at = closed.rfind(stop) if stop else -1
            if at >= 0:
                return closed[at + len(stop) :]
        raise ValueError("the chat template ends an assistant's turn with none of the stop tokens")


def _marked(messages: Sequence[Message]) -> list[Message]:
    """The messages with a mark in place of what each says. The marks are private-use characters."""
    return [{**m, "content": f"\ue000{i}\ue001"} for i, m in enumerate(messages)]


class Transcript:
    """One segment while it grows. What it gives out are views: what was appended is never written again."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._length = 0
        self._tokens_T: Ints = np.empty(0, np.int32)
        self._logprobs_T: Floats = np.empty(0, np.float32)
        self._versions_T: Ints = np.empty(0, np.int32)
        self.observed(prompt)

    @classmethod
    def of(cls, segment: Segment) -> Transcript:
        """Goes on where `segment` ends."""
        transcript = cls(())
        transcript._append(segment.tokens_T, segment.logprobs_T, segment.versions_T)
        return transcript

    def __len__(self) -> int:
        return self._length

    @property
    def tokens(self) -> Ints:
        return self._tokens_T[: self._length]

    def sampled(self, completion: Completion) -> None:
        self._append(completion.tokens_T, completion.logprobs_T, completion.versions_T)

    def observed(self, ids: Sequence[int]) -> None:
        tokens_T = np.array(ids, np.int32)
        self._append(tokens_T, np.zeros(len(ids), np.float32), np.full(len(ids), UNSAMPLED, np.int32))

    def segment(self) -> Segment:
        versions_T = self._versions_T[: self._length]
        return Segment(
            tokens_T=self.tokens,
            sampled_T=versions_T >= 0,
            logprobs_T=self._logprobs_T[: self._length],
            versions_T=versions_T,
        )

    def _append(self, tokens_T: Ints, logprobs_T: Floats, versions_T: Ints) -> None:
        start, self._length = self._length, self._length + len(tokens_T)
        if self._length > len(self._tokens_T):  # twice the room, so that each token is moved once or twice in all
            room = max(2 * self._length, 256)
            self._tokens_T = _roomier(self._tokens_T[:start], room)
            self._logprobs_T = _roomier(self._logprobs_T[:start], room)
            self._versions_T = _roomier(self._versions_T[:start], room)
        self._tokens_T[start : self._length] = tokens_T
        self._logprobs_T[start : self._length] = logprobs_T
        self._versions_T[start : self._length] = versions_T


def _roomier(values_T: npt.NDArray[_Scalar], room: int) -> npt.NDArray[_Scalar]:
    """A copy at the beginning of an array of `room`; who holds views of the old one keeps them."""
    grown_T = np.empty(room, values_T.dtype)
    grown_T[: len(values_T)] = values_T
    return grown_T
