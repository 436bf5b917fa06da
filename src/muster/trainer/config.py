"""Configuration of training: objective, baseline, correction, adapter, and the optimiser's numbers.

Law: frozen, validated once, unknown keys forbidden. What each choice computes, and its source, stands where it is
computed: `loss.py`, `advantage.py`, `correction.py`, `adapter.py`.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Aggregation = Literal["token_mean", "sequence_mean", "constant"]


class _Loss(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon_low: float = Field(default=0.2, ge=0, description="clip below 1 - this")
    epsilon_high: float = Field(default=0.2, ge=0, description="clip above 1 + this")
    aggregation: Aggregation = Field(
        default="token_mean",
        description="token_mean: every token alike; sequence_mean: every trajectory alike; "
        "constant: sum of tokens over trajectories * normalizer_tokens",
    )
    normalizer_tokens: int = Field(
        default=1024, ge=1, description="divisor of aggregation 'constant': the token budget of a trajectory"
    )


class PPO(_Loss):
    """The clipped ratio, per token."""

    kind: Literal["ppo"] = "ppo"


class GRPO(_Loss):
    """PPO's clipping; every trajectory counts alike."""

    kind: Literal["grpo"] = "grpo"
    aggregation: Aggregation = "sequence_mean"


class DrGRPO(_Loss):
    """PPO's clipping; tokens are summed over a constant, so that no length weighs more."""

    kind: Literal["dr_grpo"] = "dr_grpo"
    aggregation: Aggregation = "constant"


class DAPO(_Loss):
    """PPO's clipping with more room above than below; every token counts alike."""

    kind: Literal["dapo"] = "dapo"
    epsilon_high: float = Field(default=0.28, ge=0, description="clip above 1 + this")


class CISPO(_Loss):
    """Truncates a token's weight instead of its gradient, so that each token keeps one."""

    kind: Literal["cispo"] = "cispo"
    epsilon_high: float = Field(default=1.0, ge=0, description="weight of a token is at most 1 + this")


class GSPO(_Loss):
    """The geometric mean ratio of a sequence, clipped as one."""

    kind: Literal["gspo"] = "gspo"
    epsilon_low: float = Field(default=3e-4, ge=0, description="clip below 1 - this")
    epsilon_high: float = Field(default=4e-4, ge=0, description="clip above 1 + this")
    aggregation: Aggregation = "sequence_mean"


LossConfig = Annotated[PPO | GRPO | DrGRPO | DAPO | CISPO | GSPO, Field(discriminator="kind")]


class AdvantageConfig(BaseModel):
    """Options of the baseline and the scale of advantages."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["grpo", "dr_grpo", "rloo"] = Field(default="grpo", description="group baseline and scale")
    std_floor: float = Field(
        default=0.05,
        gt=0,
        description="smallest standard deviation that grpo divides by; below it, a group's differences are "
        "too small to be stretched to unit size",
    )


class _Correction(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Window(_Correction):
    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> _Window:
        if not 0 < self.low <= 1 <= self.high:
            raise ValueError(f"the window must hold 1: 0 < low <= 1 <= high, found {self.low} and {self.high}")
        return self


class NoCorrection(_Correction):
    """Trust the behaviour policy to be the current one. Refused by the run when a lag is possible."""

    kind: Literal["none"] = "none"


class TokenTIS(_Correction):
    """Truncated importance sampling, per token."""

    kind: Literal["token_tis"] = "token_tis"
    cap: float = Field(default=2.0, ge=1, description="largest weight of a token; 1.5 to 5 are in use")


class TokenMask(_Correction):
    """Importance sampling that masks what it will not trust, per token."""

    kind: Literal["token_mask"] = "token_mask"
    cap: float = Field(default=2.0, ge=1, description="tokens with a larger ratio are masked")


class IcePop(_Window):
    """Masks tokens on both sides of a window."""

    kind: Literal["icepop"] = "icepop"
    low: float = Field(default=0.5, description="tokens with a smaller ratio are masked")
    high: float = Field(default=2.0, description="tokens with a larger ratio are masked; 2 to 5 are in use")


class SequenceTIS(_Correction):
    """Truncated importance sampling with the product over the sequence."""

    kind: Literal["sequence_tis"] = "sequence_tis"
    cap: float = Field(default=3.0, ge=1, description="largest weight of a sequence; 2 to 10 are in use")


class GeometricMask(_Window):
    """Masks whole sequences by their geometric mean ratio; what stays is weighted as in token_tis."""

    kind: Literal["geometric_mask"] = "geometric_mask"
    low: float = Field(default=0.99, description="sequences with a smaller geometric mean ratio are masked")
    high: float = Field(default=1.01, description="sequences with a larger one are masked")
    cap: float = Field(default=2.0, ge=1, description="largest weight of a token")


CorrectionConfig = Annotated[
    NoCorrection | TokenTIS | TokenMask | IcePop | SequenceTIS | GeometricMask, Field(discriminator="kind")
]


class DivergenceLimit(BaseModel):
    """Limit of a sequence's divergence, measured exactly, at train time, and what to do with one beyond it.

    A mean per token: a limit on the ratio of a whole sequence would refuse long ones for being long.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_k3: float = Field(default=0.5, gt=0, description="largest mean k3 of a sequence, in nats")
    action: Literal["refill", "drop", "downweight"] = Field(
        default="drop",
        description="refill replaces its group before the step, if its tokens are stale, at the cost of a forward pass "
        "over stale groups; drop masks the sequence; downweight scales it by max_k3 / k3",
    )


TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class AdapterConfig(BaseModel):
    """Options of an adapter: the matrices that get one, and how large it is.

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
