"""What a user may choose about training.

Law: frozen, validated once, unknown keys forbidden. Objective, baseline and correction are configured where they
are computed; this file only gathers them beside the optimiser's numbers.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from muster.trainer.adapter import AdapterConfig
from muster.trainer.advantage import AdvantageConfig
from muster.trainer.correction import CorrectionConfig, DivergenceLimit, NoCorrection, TokenTIS
from muster.trainer.loss import DAPO, LossConfig


class TrainerConfig(BaseModel):
    """The trainer's own configuration.

    Example: `TrainerConfig(lr=2e-5, correction=IcePop(low=0.5, high=2.0))`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    adapter: AdapterConfig | None = Field(
        default=None,
        description="train low-rank matrices beside weights that stay as they are, at some ten times the rate; "
        "without it every weight is trained",
    )

    lr: float = Field(default=1e-5, gt=0, description="learning rate after warm-up")
    betas: tuple[float, float] = Field(default=(0.9, 0.95), description="AdamW's decay rates")
    adam_epsilon: float = Field(default=1e-8, gt=0, description="AdamW's epsilon")
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled weight decay, on matrices alone")
    warmup_steps: int = Field(default=0, ge=0, description="steps over which the rate grows linearly to lr")
    max_grad_norm: float = Field(default=1.0, gt=0, description="gradients with a larger norm are scaled down")

    loss: LossConfig = Field(default_factory=DAPO, description="objective, clipping and aggregation")
    advantage: AdvantageConfig = Field(default_factory=AdvantageConfig, description="group baseline")
    correction: CorrectionConfig = Field(
        default_factory=TokenTIS, description="importance correction between engine and trainer"
    )
    divergence_limit: DivergenceLimit | None = Field(
        default=None, description="what to do with sequences that are too far from their behaviour policy"
    )
    proximal: Literal["start", "behaviour"] = Field(
        default="start",
        description="what the objective's ratio compares with: the trainer's own policy at the start of the step "
        "(decoupled), or the engine's recorded log-probabilities (the ratio is then the correction)",
    )
    kl_coefficient: float = Field(
        default=0.0, ge=0, description="weight of the k3 penalty to the initial weights; 0 keeps no reference"
    )
    updates_per_batch: int = Field(default=1, ge=1, description="optimiser updates per batch, over its groups")

    dtype: Literal["bfloat16", "float32"] = Field(
        default="bfloat16", description="precision of the forward and backward pass; master weights are fp32"
    )
    serving_dtype: Literal["bfloat16", "float32"] = Field(
        default="bfloat16", description="precision of exported weights"
    )
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="cuda falls back to cpu where absent")
    threads: int = Field(default=2, ge=1, description="CPU threads of the trainer's process")
    max_tokens_per_row: int = Field(
        default=4096, ge=1, description="tokens in one forward and backward pass; bounds activation memory"
    )
    activation_checkpointing: bool = Field(
        default=False, description="recompute activations in the backward pass: less memory, a third more time"
    )
    drift_tokens: int = Field(
        default=512,
        ge=0,
        description="trained tokens that are scored again after each step to measure how far the policy moved",
    )
    seed: int = Field(default=0, description="seeds the order of groups and the sample of the drift odometer")

    @model_validator(mode="after")
    def _one_ratio_only(self) -> TrainerConfig:
        if self.proximal == "behaviour" and not isinstance(self.correction, NoCorrection):
            raise ValueError(
                "proximal 'behaviour' already compares with the engine's policy: set correction.kind to 'none', "
                "or proximal to 'start'"
            )
        return self
