"""Folders, GGUF files, and the digest that trainer and engine agree by."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny_llama as tiny
from muster.errors import ModelError
from muster.model import weights
from muster.model.tokenizer import tokenizer_from

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def test_what_is_saved_loads_as_the_same_weights(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "model")
    config, state = weights.load(folder, torch.float32)
    assert config == tiny.CONFIG
    assert weights.digest(state) == weights.digest(tiny.random_state(0))


def test_save_refuses_to_overwrite(tmp_path: Path) -> None:
    tiny.write_model(tmp_path / "model")
    with pytest.raises(ModelError, match="exists already"):
        tiny.write_model(tmp_path / "model")


def test_a_missing_or_misshapen_tensor_is_named(tmp_path: Path) -> None:
    file = tiny.write_model(tmp_path / "model") / "model.safetensors"
    state = load_file(file)
    norm = state.pop("model.norm.weight")
    save_file(state, file)
    with pytest.raises(ModelError, match=r"model\.norm\.weight is missing"):
        weights.load(tmp_path / "model", torch.float32)
    save_file({**state, "model.norm.weight": norm[:3].clone()}, file)
    with pytest.raises(ModelError, match=r"model\.norm\.weight is \(3,\)"):
        weights.load(tmp_path / "model", torch.float32)


def test_a_truncated_file_is_an_error_of_the_user_and_not_a_crash(tmp_path: Path) -> None:
    file = tiny.write_model(tmp_path / "model") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        weights.load(tmp_path / "model", torch.float32)


def test_the_digest_knows_names_shapes_types_and_bytes() -> None:
    state = {"a": torch.arange(4.0), "b": torch.ones(2)}
    digest = weights.digest(state)
    assert weights.digest(dict(reversed(state.items()))) == digest
    for other in (
        {**state, "b": torch.tensor([1.0, 1.0000001])},
        {"a": state["a"], "c": state["b"]},
        {**state, "a": state["a"].reshape(2, 2)},
        {**state, "a": state["a"].bfloat16()},
    ):
        assert weights.digest(other) != digest


def test_a_missing_model_is_one_line_that_names_it(tmp_path: Path) -> None:
    for wrong in (str(tmp_path / "nothing"), "meta-llama/none"):
        with pytest.raises(ModelError) as caught:
            weights.resolve(wrong)
        assert wrong in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_folder_resolves_to_itself(tmp_path: Path) -> None:
    folder = tiny.write_model(tmp_path / "model")
    assert weights.resolve(str(folder)) == folder


def test_a_gguf_file_is_converted_once_and_exactly(tmp_path: Path) -> None:
    state = tiny.random_state(3)
    source = _write_gguf(tmp_path / "tiny.gguf", state)
    folder = weights.resolve(str(source), cache=tmp_path / "cache")
    config, converted = weights.load(folder, torch.float32)
    assert weights.digest(converted) == weights.digest(state)
    assert (config.heads, config.kv_heads, config.eos_tokens, config.rms_eps) == (4, 2, (2,), 1e-5)
    tokenizer = tokenizer_from(folder)
    assert tokenizer.decode(tokenizer.encode("ab 12")) == "ab 12"
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert weights.resolve(str(source), cache=tmp_path / "cache") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [folder.name]


def test_a_file_that_is_no_gguf_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    source = tmp_path / "broken.gguf"
    source.write_bytes(b"GGUFnonsense" * 10)
    with pytest.raises(ModelError, match=r"broken\.gguf"):
        weights.resolve(str(source), cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def _write_gguf(path: Path, state: dict[str, torch.Tensor]) -> Path:
    c = tiny.CONFIG
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(c.layers)
    writer.add_context_length(c.context)
    writer.add_embedding_length(c.width)
    writer.add_feed_forward_length(c.mlp_width)
    writer.add_head_count(c.heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_layer_norm_rms_eps(c.rms_eps)
    bytes_alphabet = [chr(code) for code in [*range(33, 127), *range(161, 173), *range(174, 256)]]
    tokens = ["<|end|>", "<s>", "</s>", *bytes_alphabet, "Ġ", "ab"]
    tokens += [f"unused{i}" for i in range(c.vocab_size - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    for name, tensor in state.items():
        heads = c.heads if "q_proj" in name else c.kv_heads if "k_proj" in name else 0
        writer.add_tensor(_gguf_name(name), _interleaved(tensor.numpy(), heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in top:
        return top[name]
    _, _, layer, *part, kind = name.split(".")
    return f"blk.{layer}.{NAMES['.'.join(part)]}.{kind}"


def _interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    if not heads:
        return values
    halves = values.reshape(heads, 2, len(values) // heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)
