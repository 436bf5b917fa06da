"""Training low-rank matrices beside weights that stay as they are: what a user may choose, and how it begins.

Law: pure, no torch. B is zero at the start, so that the first policy is the base's own; A is drawn from the seed and
the weight's place in the model alone, so that a choice of targets does not change what another target begins with.

    W' = W + (alpha / rank) B A        W (O, I) frozen, A (R, I), B (O, R) trained (Hu et al. 2021)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from muster.trainer.config import AdapterConfig
from muster.transport.adapter import A, B
from muster.types import Floats

_PEFT_PREFIX = "base_model.model."


def fresh(shapes: Mapping[str, tuple[int, ...]], config: AdapterConfig, seed: int) -> dict[str, Floats]:
    """The matrices that training begins with, by `NAME.lora_A` and `NAME.lora_B`, fp32.

    A is uniform within 1 / sqrt(I), as the authors' own code draws it. shapes: of all parameters of the model.
    """
    low_rank: dict[str, Floats] = {}
    for place, (name, shape) in enumerate(shapes.items()):
        if config.adapts(name):
            outputs, inputs = shape
            bound = inputs**-0.5
            rng = np.random.default_rng([seed, place])
            low_rank[name + A] = rng.uniform(-bound, bound, (config.rank, inputs)).astype(np.float32)
            low_rank[name + B] = np.zeros((outputs, config.rank), dtype=np.float32)
    return low_rank


def peft_name(name: str) -> str:
    """Name of a low-rank matrix in PEFT's files.

    Example: `peft_name("model.layers.0.mlp.up_proj.weight.lora_A")` is
    `"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"`
    """
    weight, _, kind = name.rpartition(".")
    return f"{_PEFT_PREFIX}{weight.removesuffix('.weight')}.{kind}.weight"


def peft_config(config: AdapterConfig, model: str) -> dict[str, Any]:
    """The `adapter_config.json` beside such files. model: the folder of the base."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(config.targets),
        "bias": "none",
        "inference_mode": True,
    }
