"""Configuration of the embedded engine. No torch: whoever launches the engine reads this."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class EmbeddedEngineConfig(BaseModel):
    """A small engine in a process of its own, on the CPU."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replicas: int = Field(default=1, ge=1, description="processes that serve; they share the machine's cores")
    dtype: Literal["bfloat16", "float32"] = Field(default="bfloat16", description="serving precision")
    max_streams: int = Field(default=64, ge=1, description="requests that run at once; more wait")
    max_model_len: int = Field(default=1024, ge=16, description="tokens of prompt and completion together")
    kv_capacity_tokens: int = Field(default=131_072, ge=16, description="cache: 3/4 slots, 1/4 prefixes")
    prefill_chunk_tokens: int = Field(default=256, ge=1, description="prompt tokens computed per step")
    threads: int = Field(default=0, ge=0, description="threads of the matrix library; 0: one per available core")
    seed: int = Field(default=0, ge=0, description="for requests without a seed of their own")
    start_timeout_s: float = Field(default=120.0, gt=0, description="until the process answers")
    request_timeout_s: float = Field(default=600.0, gt=0, description="deadline of one generate call")
    control_timeout_s: float = Field(default=60.0, gt=0, description="deadline of any other call")

    @property
    def slots(self) -> int:
        """Sequences whose tail can be cached at once, running or idle."""
        return self.kv_capacity_tokens * 3 // 4 // self.max_model_len

    @property
    def prefix_capacity_tokens(self) -> int:
        return self.kv_capacity_tokens - self.slots * self.max_model_len

    @model_validator(mode="after")
    def _streams_fit(self) -> EmbeddedEngineConfig:
        if self.slots < self.max_streams:
            need = -(-self.max_streams * self.max_model_len * 4 // 3)
            raise ValueError(
                f"kv_capacity_tokens = {self.kv_capacity_tokens} holds {self.slots} streams of "
                f"max_model_len = {self.max_model_len}; max_streams = {self.max_streams} needs {need}"
            )
        return self
