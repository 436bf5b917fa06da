"""Configuration of SGLang servers. No torch and no adapter: whoever launches an engine reads this."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SglangConfig(BaseModel):
    """SGLang servers on GPUs: started here, or running already at `urls`.

    Example: `SglangConfig(replicas=2, python="/opt/sglang/bin/python", gpus=((0, 1), (2, 3)))`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["sglang"] = "sglang"
    replicas: int = Field(default=1, ge=1, description="servers that are started; those of `urls` count themselves")
    dtype: Literal["bfloat16", "float32"] = Field(default="bfloat16", description="serving precision")
    max_model_len: int = Field(default=1024, ge=16, description="tokens of prompt and completion together")
    max_streams: int = Field(default=64, ge=1, description="requests that run at once; more wait")
    python: str = Field(default="", description="interpreter that has sglang; empty: the one that runs muster")
    urls: tuple[str, ...] = Field(default=(), description="running servers that serve the model's own weights")
    gpus: tuple[tuple[int, ...], ...] = Field(
        default=(), description="device numbers of each replica; empty: one each, counted from 0"
    )
    memory_fraction: float = Field(default=0.85, gt=0, le=1, description="share of a GPU for weights and cache")
    overlap: bool = Field(
        default=True,
        description="schedule a step while the one before runs; false: held requests may keep their cache",
    )
    deterministic: bool = Field(default=False, description="honour the seed of a request; slower")
    checksums: bool = Field(
        default=True, description="ask for the server's checksum after each commit; false: its weights are quantised"
    )
    session_header: str = Field(
        default="X-SMG-Routing-Key", min_length=1, description="by which a router before the servers keeps a session"
    )
    staging: Path | None = Field(
        default=None, description="folder that the servers read under the same path; none: a temporary one here"
    )
    extra_args: tuple[str, ...] = Field(default=(), description="further arguments of sglang's server")
    start_timeout_s: float = Field(default=900.0, gt=0, description="until a server answers")
    request_timeout_s: float = Field(default=600.0, gt=0, description="deadline of one generate call")
    control_timeout_s: float = Field(default=120.0, gt=0, description="deadline of any other call")

    @model_validator(mode="after")
    def _one_place_per_replica(self) -> SglangConfig:
        if self.gpus and len(self.gpus) != self.replicas:
            raise ValueError(f"gpus names devices for {len(self.gpus)} replicas, replicas = {self.replicas}")
        if self.gpus and not all(self.gpus):
            raise ValueError("gpus names no device for one of the replicas")
        if self.urls and len(self.urls) != self.replicas:
            raise ValueError(f"urls names {len(self.urls)} servers, replicas = {self.replicas}")
        return self
