"""Training low-rank matrices beside weights that stay as they are: what a user may choose, and how it begins.

Law: pure, no torch. B is zero at the start, so that the first policy is the base's own; A is drawn from the seed and
the weight's place in the model alone, so that a choice of targets does not change what another target begins with.

    W' = W + (alpha / rank) B A        W (O, I) frozen, A (R, I), B (O, R) trained (Hu et al. 2021)
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from muster.transport.adapter import A, B
from muster.types import Floats

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

_PEFT_PREFIX = "base_model.model."


class AdapterConfig(BaseModel):
    """Which matrices get an adapter, and how large it is.

    Example: `AdapterConfig(rank=8, alpha=16, targets=("q_proj", "v_proj"))`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(default=16, ge=1, description="inner dimension of the low-rank product")
    alpha: float = Field(default=32.0, gt=0, description="the product is scaled by alpha / rank")
    targets: tuple[str, ...] = Field(default=TARGETS, min_length=1, description="matrices of each layer, by name")
    publish: Literal["adapter", "merged"] = Field(
        default="adapter",
        description="what travels: the low-rank matrices, merged where an engine runs; or the merged weights, for "
        "engines that did not start from this base",
    )

    @field_validator("targets")
    @classmethod
    def _known(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        for target in targets:
            if target not in TARGETS:
                near = difflib.get_close_matches(target, TARGETS, n=1)
                meant = f"did you mean {near[0]!r}? " if near else ""
                raise ValueError(f"no matrix is called {target!r}; {meant}known: {', '.join(TARGETS)}")
        if len(set(targets)) < len(targets):
            raise ValueError(f"a target is named twice in {', '.join(targets)}; name each once")
        return targets

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def adapts(self, name: str) -> bool:
        """name: of a parameter, as Hugging Face calls it."""
        return name.endswith(".weight") and name.split(".")[-2] in self.targets


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
    """What PEFT's files call a low-rank matrix.

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
