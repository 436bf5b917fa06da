"""A GGUF file of a Llama, as a Hugging Face folder.

Law: exact. Quantised blocks become the fp32 numbers they stand for, never rounded again; the rows of q and k,
which GGUF stores interleaved for its own rotary kernel, return to the half-split order; the tokenizer's
pre-tokenizer is rebuilt by name, or refused.
"""
# torch and tokenizers leave much of what they offer without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from muster.errors import ModelError
from muster.model.config import LlamaConfig

FORMAT = "1"
"""Part of the cache key: change it when a conversion would come out differently."""

_CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, folder: Path) -> None:
    """Write config, weights (fp32), tokenizer and chat template of `source` into the empty `folder`.

    Raises `ModelError` when the file is no GGUF, or holds an architecture or tokenizer we cannot rebuild.
    """
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, IndexError) as error:
        raise ModelError(f"{source}: not a readable GGUF file ({error})") from None
    config = _config(reader, source)
    tensors = {_name(t.name): torch.from_numpy(_dequantise(t, config)) for t in reader.tensors}
    if config.tied_embeddings:
        tensors.pop("lm_head.weight", None)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**config.to_json(), "dtype": "float32"}, indent=2) + "\n")
    _write_tokenizer(reader, source, folder)


def _config(reader: gguf.GGUFReader, source: Path) -> LlamaConfig:
    architecture = _field(reader, source, "general.architecture")
    if architecture != "llama":
        raise ModelError(f"{source}: GGUF architecture {architecture!r} cannot be converted; known: llama")

    def number(key: str) -> Any:
        return _field(reader, source, f"llama.{key}")

    heads, width = int(number("attention.head_count")), int(number("embedding_length"))
    return LlamaConfig(
        vocab_size=len(_field(reader, source, "tokenizer.ggml.tokens")),
        width=width,
        mlp_width=int(number("feed_forward_length")),
        layers=int(number("block_count")),
        heads=heads,
        kv_heads=int(number("attention.head_count_kv")),
        head_width=width // heads,
        context=int(number("context_length")),
        rope_theta=float(number("rope.freq_base")),
        rms_eps=float(f"{number('attention.layer_norm_rms_epsilon'):.6g}"),  # a fp32 of a decimal literal
        tied_embeddings=all(t.name != "output.weight" for t in reader.tensors),
        bos_token=_field(reader, source, "tokenizer.ggml.bos_token_id"),
        eos_tokens=(_field(reader, source, "tokenizer.ggml.eos_token_id"),),
        pad_token=_field(reader, source, "tokenizer.ggml.padding_token_id"),
    )


def _field(reader: gguf.GGUFReader, source: Path, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise ModelError(f"{source}: GGUF key {key} is missing")
    return field.contents()


def _name(name: str) -> str:
    top = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in top:
        return top[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"


def _dequantise(tensor: gguf.ReaderTensor, config: LlamaConfig) -> npt.NDArray[np.float32]:
    values = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    if tensor.name.endswith("attn_q.weight"):
        return _half_split(values, config.heads)
    if tensor.name.endswith("attn_k.weight"):
        return _half_split(values, config.kv_heads)
    return values


def _half_split(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo GGUF's interleaving of the two rotary halves inside each head."""
    out, width = rows.shape
    pairs = rows.reshape(heads, out // heads // 2, 2, width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(out, width)


def _write_tokenizer(reader: gguf.GGUFReader, source: Path, folder: Path) -> None:
    tokens: list[str] = _field(reader, source, "tokenizer.ggml.tokens")
    kinds: list[int] = _field(reader, source, "tokenizer.ggml.token_type")
    merges: list[str] = _field(reader, source, "tokenizer.ggml.merges")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = _pre_tokenizer(_field(reader, source, "tokenizer.ggml.pre"), source)
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {
        f"{kind}_token": tokens[_field(reader, source, f"tokenizer.ggml.{key}_token_id")]
        for kind, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
    }
    settings = {**special, "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(_field(reader, source, "tokenizer.chat_template"))


def _pre_tokenizer(name: str, source: Path) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "gpt-2":
        return byte_level
    if name == "smollm":  # digits stand alone
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    raise ModelError(f"{source}: GGUF pre-tokenizer {name!r} cannot be rebuilt; pass a Hugging Face folder")
