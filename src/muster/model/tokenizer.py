"""Text to token ids and back, and the chat template. No torch, no transformers.

Law: token ids are what is trained, so nothing is added silently: `encode` adds no special token, and the text
of a special token inside `text` becomes that token. Whoever encodes untrusted text uses `encode_plain`,
where it cannot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from muster.errors import ModelError
from muster.model.config import LlamaConfig

Message = Mapping[str, str]


class ChatTokenizer:
    """A tokenizer with its chat template.

    Example:
        tokenizer = tokenizer_from(folder)
        prompt = tokenizer.encode(tokenizer.render([{"role": "user", "content": "Hi"}], True))
    """

    def __init__(
        self, tokenizer: Tokenizer, template: str, *, stop_tokens: tuple[int, ...], special: Mapping[str, str]
    ) -> None:
        """special: `bos_token`, `eos_token`, ... as the template may name them."""
        self._tokenizer = tokenizer
        self._special = dict(special)
        self._template = _compile(template)
        self.stop_tokens = stop_tokens
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; adds no special token, recognises the text of one."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_plain(self, text: str) -> list[int]:
        """Ids of untrusted `text`: the spelling of a special token stays ordinary text."""
        return self._plain.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """The chat template over `messages`. Raises `ModelError` when the template refuses them."""
        try:
            return self._template.render(
                messages=[dict(m) for m in messages],
                add_generation_prompt=add_generation_prompt,
                **self._special,
            )
        except TemplateError as error:
            raise ModelError(f"the chat template refused the messages: {error}") from None

    def token(self, text: str) -> int | None:
        """The id of one token by its exact spelling."""
        return self._tokenizer.token_to_id(text)

    @cached_property
    def _plain(self) -> Tokenizer:
        plain = Tokenizer.from_str(self._tokenizer.to_str())
        plain.encode_special_tokens = True
        return plain


def tokenizer_from(folder: Path) -> ChatTokenizer:
    """Read `tokenizer.json`, the chat template and the stop tokens of a Hugging Face folder.

    Raises `ModelError` when a file is missing or broken.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(f"{folder}: no tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    settings = _json(folder / "tokenizer_config.json")
    special = {k: _text(v) for k, v in settings.items() if k.endswith("_token") and _text(v)}
    stops = set(LlamaConfig.from_folder(folder).eos_tokens)
    stops.update(_ids(_json(folder / "generation_config.json").get("eos_token_id")))
    end = tokenizer.token_to_id(special.get("eos_token", ""))
    stops.update(() if end is None else (end,))
    return ChatTokenizer(tokenizer, _template(folder, settings), stop_tokens=tuple(sorted(stops)), special=special)


def _template(folder: Path, settings: Mapping[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text()
    if isinstance(settings.get("chat_template"), str):
        return settings["chat_template"]
    raise ModelError(f"{folder}: no chat template (chat_template.jinja); an agent needs a chat model")


def _compile(template: str) -> Template:
    def refuse(message: str) -> None:
        raise TemplateError(message)

    # the sandbox: a template comes with a checkpoint and is data
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, extensions=["jinja2.ext.loopcontrols"]
    )
    untyped: Any = environment  # jinja2 leaves these two open
    untyped.globals["raise_exception"] = refuse
    untyped.filters["tojson"] = json.dumps
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise ModelError(f"the chat template is broken: {error}") from None


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON ({error})") from None


def _text(value: object) -> str:
    """A special token is written as text or as an object with `content`."""
    if isinstance(value, Mapping):
        return str(cast("Mapping[str, object]", value).get("content", ""))
    return value if isinstance(value, str) else ""


def _ids(value: object) -> list[int]:
    if value is None:
        return []
    return [int(v) for v in cast("list[Any]", value)] if isinstance(value, list) else [int(str(value))]
