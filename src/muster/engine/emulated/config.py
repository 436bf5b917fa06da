"""What is emulated: limits, cache, timing and the times of a publication."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from muster.engine.emulated.timing import EngineTiming


class EmulatedEngineConfig(BaseModel):
    """One replica. The defaults are a small server for tests; `presets` has real ones.

    Example: `EmulatedEngineConfig(timing=EngineTiming(step_s=0.02, prefill_s=0.0005))`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str = Field(default="", description="what it emulates")
    devices: int = Field(default=1, ge=1, description="accelerators that the replica occupies")
    timing: EngineTiming = Field(
        default_factory=lambda: EngineTiming(step_s=0.02, prefill_s=0.0005), description="seconds of a step"
    )
    max_running: int = Field(default=64, ge=1, description="requests in the batch; more wait")
    max_step_tokens: int = Field(default=2048, ge=1, description="tokens of a step: one a request, then prompts")
    max_model_len: int = Field(default=4096, ge=2, description="tokens of prompt and completion together")
    kv_capacity_tokens: int = Field(default=262_144, ge=2, description="tokens whose keys and values fit")
    block_tokens: int = Field(default=16, ge=1, description="the cache's unit; only whole blocks are shared")
    vocabulary: int = Field(default=32_768, ge=8, description="token ids lie below it")
    logprobs: bool = Field(default=True, description="make up log-probabilities; False: all are 0, at no cost")
    stage_s: float = Field(default=0.5, ge=0, description="fetching a publication while serving goes on")
    stage_bytes_per_s: float = Field(default=10e9, gt=0, description="and its bytes at this rate")
    commit_s: float = Field(default=0.05, ge=0, description="switching to staged weights, inside the pause")

    @property
    def blocks(self) -> int:
        return self.kv_capacity_tokens // self.block_tokens

    def stream_decode_rate(self, context: int = 0) -> float:
        """Tokens a second of one request alone at that context. The highest, for a bound, is at context 0."""
        return 1 / self.timing.decode_s(1, 1, context)

    def decode_rate(self, context: int = 0) -> float:
        """Tokens a second of a full batch whose requests have that context each."""
        return self.max_running / self.timing.decode_s(1, self.max_running, self.max_running * context)

    def prefill_rate(self) -> float:
        """Prompt tokens a second of short prompts in full steps, when nothing decodes."""
        return self.max_step_tokens / (self.timing.step_s + self.timing.chunk_s(self.max_step_tokens, 0))

    @model_validator(mode="after")
    def _consistent(self) -> EmulatedEngineConfig:
        if self.max_step_tokens < self.max_running:
            raise ValueError(
                f"max_step_tokens = {self.max_step_tokens} cannot hold a token for each of max_running = "
                f"{self.max_running} requests"
            )
        if self.blocks * self.block_tokens < self.max_model_len + self.block_tokens:
            need = self.max_model_len + 2 * self.block_tokens
            raise ValueError(
                f"kv_capacity_tokens = {self.kv_capacity_tokens} does not hold one request of max_model_len = "
                f"{self.max_model_len}; it needs {need}"
            )
        return self
