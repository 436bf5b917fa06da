"""The policy that learns: masters, optimiser, and the two things one does with them.

Law: `logprobs` reads, `update` writes; nothing else touches a weight. An update is the accumulated gradient divided
once by its denominator, clipped by norm, and applied; if it is not finite it is refused and the weights stay.

    logprobs(row) ─► backward(gradient) ─► accumulate … ─► update(denominator) ─► new weights
"""
# torch leaves much of what it offers without types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from muster.errors import TrainerError
from muster.model.config import LlamaConfig
from muster.trainer.config import TrainerConfig
from muster.trainer.forward import hidden, logprobs, row_tensors
from muster.trainer.masters import Masters, adapted, whole
from muster.trainer.packing import PackedRow
from muster.trainer.weights import Compute
from muster.types import Floats

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Result of one optimiser update. grad_norm is before clipping."""

    grad_norm: float
    lr: float


class Learner:
    """Masters, their copy in compute precision, AdamW, and the initial policy where a penalty needs it."""

    def __init__(self, config: TrainerConfig, model: Path) -> None:
        self.config = config
        self.device = torch.device("cuda" if config.device == "cuda" and torch.cuda.is_available() else "cpu")
        self.model_config, self.masters = self._masters(model)
        self.compute = self.copy(config.dtype)
        self.reference = self.copy(config.dtype) if config.kl_coefficient else None
        self.optimizer = _adamw(self.masters.trained, config)
        self.updates = 0

    def copy(self, dtype: str) -> Compute:
        """The present weights in another precision."""
        return Compute(self.model_config, self.masters, DTYPES[dtype])

    def served(self) -> Compute:
        """The present weights in the precision of the engines: what is published, and scored against them."""
        return self.compute if self.config.serving_dtype == self.config.dtype else self.copy(self.config.serving_dtype)

    def logprobs(self, compute: Compute, row: PackedRow, temperature: float) -> Tensor:
        """Log-probability (N,) of each token that the row trains, in fp32, after temperature."""
        tensors = row_tensors(row, self.model_config, compute.embed)
        checkpointing = self.config.activation_checkpointing
        return logprobs(compute, hidden(compute, tensors, checkpointing=checkpointing), tensors, temperature)

    def backward(self, logprobs_N: Tensor, gradient_N: Floats) -> None:
        """Accumulate d loss / d weights from d loss / d log pi."""
        logprobs_N.backward(torch.from_numpy(gradient_N).to(logprobs_N.device))
        self.compute.flush()

    def update(self, denominator: float) -> Update:
        """Apply what was accumulated. Raises `TrainerError` when it is not finite."""
        gradients = [master.grad for master in self.masters.trained.values() if master.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients)) / denominator
        if not math.isfinite(norm):
            self.optimizer.zero_grad()
            raise TrainerError("the gradient is not finite; weights and optimiser are unchanged")
        scale = min(1.0, self.config.max_grad_norm / max(norm, 1e-12)) / denominator
        for gradient in gradients:
            gradient.mul_(scale)
        lr = self.config.lr * min(1.0, (self.updates + 1) / max(1, self.config.warmup_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1
        self.compute.refresh()
        return Update(grad_norm=norm, lr=lr)

    def _masters(self, model: Path) -> tuple[LlamaConfig, Masters]:
        config = self.config
        if config.adapter is None:
            return whole(model, self.device)
        dtype = DTYPES[config.serving_dtype]
        return adapted(model, config.adapter, dtype=dtype, seed=config.seed, device=self.device)


def _adamw(masters: dict[str, Tensor], config: TrainerConfig) -> torch.optim.AdamW:
    """Decay on matrices; not on norms and biases (Loshchilov and Hutter 2019, and common practice)."""
    matrices = [tensor for tensor in masters.values() if tensor.ndim > 1]
    vectors = [tensor for tensor in masters.values() if tensor.ndim <= 1]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=config.lr,
        betas=config.betas,
        eps=config.adam_epsilon,
        fused=True,
    )
