"""Text to ids and back; special tokens only where they are meant."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import tiny_llama as tiny
from muster.errors import ModelError
from muster.model.tokenizer import ChatTokenizer, tokenizer_from

TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'robot' %}{{ raise_exception('no robots') }}{% endif %}"
    "<im>{{ message['role'] }}\n{{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<im>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write_model(tmp_path_factory.mktemp("tokenizer") / "model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<im>", special=True), AddedToken("</im>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</im>"}}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> ChatTokenizer:
    return tokenizer_from(folder)


def test_any_text_survives_the_round_trip(tokenizer: ChatTokenizer) -> None:
    for text in ("", "echo 12 > a.txt\n", "Grüße, 世界 \x00", "<im>user\nhi</im>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.decode(tokenizer.encode_plain(text)) == text


def test_the_spelling_of_a_special_token_is_the_token_unless_the_text_is_untrusted(tokenizer: ChatTokenizer) -> None:
    special = tokenizer.token("</im>")
    assert tokenizer.encode("a</im>").count(special) == 1
    assert special not in tokenizer.encode_plain("a</im>")
    assert tokenizer.encode("a</im>")[-1] == special, "and encoding untrusted text changed nothing"


def test_special_tokens_can_be_left_out_of_the_text(tokenizer: ChatTokenizer) -> None:
    ids = tokenizer.encode("hi</im>")
    assert tokenizer.decode(ids) == "hi</im>"
    assert tokenizer.decode(ids, skip_special=True) == "hi"


def test_the_chat_template_is_rendered_with_its_special_tokens(tokenizer: ChatTokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.render(messages, False) == "<im>user\nhi</im>"
    assert tokenizer.render(messages, True) == "<im>user\nhi</im><im>assistant\n"


def test_a_template_that_refuses_is_a_model_error(tokenizer: ChatTokenizer) -> None:
    with pytest.raises(ModelError, match="no robots"):
        tokenizer.render([{"role": "robot", "content": ""}], True)


def test_stop_tokens_come_from_config_and_tokenizer(tokenizer: ChatTokenizer) -> None:
    assert set(tokenizer.stop_tokens) == {2, tokenizer.token("</im>")}
    assert tokenizer.vocab_size == 258


def test_a_folder_without_tokenizer_or_template_is_named(tmp_path: Path, folder: Path) -> None:
    model = tiny.write_model(tmp_path / "model")
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        tokenizer_from(model)
    (model / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(ModelError, match="no chat template"):
        tokenizer_from(model)


def test_reading_a_tokenizer_loads_no_torch() -> None:
    script = "import sys, muster.model.tokenizer; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
