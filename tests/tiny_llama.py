"""A tiny random Llama on disk, and its exact log-probabilities by a plain forward pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from muster.model import weights
from muster.model.config import LlamaConfig
from muster.model.llama import Llama
from muster.types import Floats, Ints, Publication, Version

CONFIG = LlamaConfig(
    vocab_size=300,
    width=64,
    mlp_width=96,
    layers=2,
    heads=4,
    kv_heads=2,
    head_width=16,
    context=1024,
    eos_tokens=(2,),
)


def random_state(seed: int, config: LlamaConfig = CONFIG) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in weights.parameter_shapes(config).items():
        noise = torch.randn(shape, generator=generator)
        state[name] = 1 + 0.1 * noise if len(shape) == 1 else noise * 0.2
    return state


def write_model(folder: Path, seed: int = 0, config: LlamaConfig = CONFIG) -> Path:
    weights.save(folder, config, random_state(seed, config))
    return folder


def publish(
    folder: Path, number: int, seed: int, dtype: torch.dtype = torch.float32, config: LlamaConfig = CONFIG
) -> Publication:
    state = {name: tensor.to(dtype) for name, tensor in random_state(seed, config).items()}
    path = folder / f"v{number}.safetensors"
    save_file(state, path)
    return Publication(
        version=Version(number=number, digest=weights.digest(state)),
        transport="memory",
        location=str(path),
        size_bytes=path.stat().st_size,
        dtype=str(dtype).removeprefix("torch."),
    )


def reference(seed: int, tokens: Ints, temperature: float, config: LlamaConfig = CONFIG) -> Floats:
    """As `engine.port.Scores.logprobs_T`, in fp32."""
    model = Llama.from_state(config, random_state(seed, config))
    ids = torch.from_numpy(tokens.astype(np.int64))
    with torch.no_grad():
        logits = model.logits(model.hidden(ids, torch.arange(len(ids)))) / temperature
    scores = np.zeros(len(tokens), dtype=np.float32)
    scores[1:] = logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0].numpy()
    return scores
