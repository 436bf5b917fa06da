"""A character tokenizer with a ChatML-like template, for tests of the renderer and the agent."""

from __future__ import annotations

from collections.abc import Sequence

from muster.rollout.renderer import Message

START, STOP = "\x01", "\x02"


class CharTokenizer:
    """Token id = code point. START and STOP are the special tokens."""

    stop_tokens = (ord(STOP),)

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def encode_plain(self, text: str) -> list[int]:
        return [ord(c) + (0x100 if c in (START, STOP) else 0) for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        text = "".join(f"{START}{m['role']}\n{m['content']}{STOP}\n" for m in messages)
        return text + (f"{START}assistant\n" if add_generation_prompt else "")


class ForgetfulTokenizer(CharTokenizer):
    """Drops earlier assistant turns, as templates that strip reasoning do."""

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        last = len(messages) - 1
        kept = [m for i, m in enumerate(messages) if m["role"] != "assistant" or i == last]
        return super().render(kept, add_generation_prompt)
