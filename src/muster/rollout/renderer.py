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
from typing import Protocol

import numpy as np

from muster.types import UNSAMPLED, Completion, Ints, Segment

Message = Mapping[str, str]

_MARK = re.compile("\ue000(\\d+)\ue001")
_PROBE: tuple[Message, ...] = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "a"})


class Tokenizer(Protocol):
    """What the renderer needs of a tokenizer with a chat template. `stop_tokens` end an assistant's turn."""

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
        """What a sampled turn says, without its stop token. For parsing and for people, never for training."""
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
        """What the template puts between an assistant's stop token and the next message (often a newline)."""
        for stop in self._stop_texts:
            at = closed.rfind(stop) if stop else -1
            if at >= 0:
                return closed[at + len(stop) :]
        raise ValueError("the chat template ends an assistant's turn with none of the stop tokens")


def _marked(messages: Sequence[Message]) -> list[Message]:
    """The messages with a mark in place of what each says. The marks are private-use characters."""
    return [{**m, "content": f"\ue000{i}\ue001"} for i, m in enumerate(messages)]


class Transcript:
    """One segment while it grows."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens = list(prompt)
        self._logprobs = [0.0] * len(prompt)
        self._versions = [UNSAMPLED] * len(prompt)

    @classmethod
    def of(cls, segment: Segment) -> Transcript:
        """Goes on where `segment` ends."""
        transcript = cls(())
        transcript._tokens = segment.tokens_T.tolist()
        transcript._logprobs = segment.logprobs_T.tolist()
        transcript._versions = segment.versions_T.tolist()
        return transcript

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> Ints:
        return np.array(self._tokens, np.int32)

    def sampled(self, completion: Completion) -> None:
        self._tokens += completion.tokens_T.tolist()
        self._logprobs += completion.logprobs_T.tolist()
        self._versions += completion.versions_T.tolist()

    def observed(self, ids: Sequence[int]) -> None:
        self._tokens += ids
        self._logprobs += [0.0] * len(ids)
        self._versions += [UNSAMPLED] * len(ids)

    def segment(self) -> Segment:
        versions = np.array(self._versions, np.int32)
        return Segment(
            tokens_T=self.tokens,
            sampled_T=versions >= 0,
            logprobs_T=np.array(self._logprobs, np.float32),
            versions_T=versions,
        )
