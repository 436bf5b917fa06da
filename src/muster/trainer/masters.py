"""Master weights: what training moves, in fp32, and the weights that follow from it.

Law: a weight is trained itself, or frozen, or frozen with a low-rank change that is trained. What it is worth now is
asked here and nowhere else, and comes out of the sum that an engine's machine makes, bit for bit: the policy that is
trained is the one that is served.

    all of the model:   trained[NAME] (fp32) ────────────────────────────────────► value(NAME)
    an adapter:         frozen[NAME] (serving dtype) ─────────────────────────┐
                        trained[NAME.lora_A], [NAME.lora_B] (fp32) ─► merge ──┴──► value(NAME)
"""
# torch leaves much of what it offers without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from muster.model.config import LlamaConfig
from muster.model.weights import digest, load, parameter_shapes
from muster.trainer.adapter import fresh
from muster.trainer.config import AdapterConfig
from muster.transport.adapter import A, Adapter, B

_BLOCK = {"cpu": 1 << 17, "cuda": 1 << 26}
"""Elements merged at a time: what stays in a core's cache, and what keeps a device busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The low-rank change of one weight: scale * B A, with A (R, I) and B (O, R)."""

    a_RI: Tensor
    b_OR: Tensor
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Masters:
    """Every value that an update changes, and what it stands beside.

    Example: `Masters(trained={"w": torch.zeros(4, 4, requires_grad=True)}).value("w")`
    """

    trained: dict[str, Tensor]  # fp32 leaves, on the device
    frozen: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])  # there too; empty: all is trained
    adapter: Adapter | None = None

    @property
    def device(self) -> torch.device:
        return next(iter(self.trained.values())).device

    def moves(self, name: str) -> bool:
        """Whether an update changes the weight of this name."""
        return name in self.trained or name + A in self.trained

    def pair(self, name: str) -> Pair | None:
        if self.adapter is None or name + A not in self.trained:
            return None
        return Pair(a_RI=self.trained[name + A], b_OR=self.trained[name + B], scale=self.adapter.scale)

    @torch.no_grad()
    def value(self, name: str) -> Tensor:
        """The present weight, in the precision that it is known in; shares memory with it where nothing is summed."""
        if name in self.trained:
            return self.trained[name].detach()
        pair = self.pair(name)
        if pair is None:
            return self.frozen[name]
        return _merged(self.frozen[name], pair)


def _merged(base_OI: Tensor, pair: Pair) -> Tensor:
    """base + scale * B A in fp32: `transport.adapter.merge_one`, operation for operation, where the masters are.

    A product and a sum are rounded alike by every processor as long as they are two operations, and here they are.
    """
    merged_OI = torch.empty_like(base_OI, dtype=torch.float32)
    step = max(1, _BLOCK[base_OI.device.type] // base_OI.shape[1])
    blocks = zip(base_OI.split(step), pair.b_OR.split(step), merged_OI.split(step), strict=True)
    for base_BI, b_BR, sum_BI in blocks:
        sum_BI.zero_()
        term_BI = torch.empty_like(sum_BI)
        for b_B1, a_I in zip(b_BR.split(1, dim=1), pair.a_RI, strict=True):
            torch.mul(b_B1, a_I, out=term_BI)
            sum_BI += term_BI
        sum_BI.mul_(pair.scale).add_(base_BI)
    return merged_OI


def whole(model: Path, device: torch.device) -> tuple[LlamaConfig, Masters]:
    """Train every weight of a model folder. Raises `ModelError`."""
    config, state = load(model, torch.float32)
    return config, Masters(trained={name: tensor.to(device).requires_grad_() for name, tensor in state.items()})


def adapted(
    model: Path, config: AdapterConfig, *, dtype: torch.dtype, seed: int, device: torch.device
) -> tuple[LlamaConfig, Masters]:
    """Train an adapter beside the weights of a model folder. Raises `ModelError`.

    dtype: of the engines. The base is rounded to it before anything is added, because that is what an engine has.
    """
    model_config, base = load(model, dtype)
    low_rank = fresh(parameter_shapes(model_config), config, seed)
    return model_config, Masters(
        trained={name: torch.from_numpy(array).to(device).requires_grad_() for name, array in low_rank.items()},
        frozen={name: tensor.to(device) for name, tensor in base.items()},
        adapter=Adapter(base=digest(base), scale=config.scale),
    )
