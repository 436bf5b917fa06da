"""Configuration of publications: how new weights travel to the engines, in which form, and how they arrive."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from muster.engine.port import CachePolicy, InFlight


class _Paced(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    max_bytes_per_s: float | None = Field(
        default=None, gt=0, description="each engine fetches no faster, so that staging does not starve serving"
    )


class MemoryConfig(_Paced):
    """Transport through shared memory: engines on the trainer's machine map the file that it wrote."""

    kind: Literal["memory"] = "memory"
    keep: int = Field(default=2, ge=2, description="versions that stay: the one before is there to go back to")


class _Chained(_Paced):
    form: Literal["whole", "delta"] = Field(
        default="whole", description="whole: all weights; delta: those whose bits changed since the version before"
    )
    anchor_every: int = Field(
        default=16, ge=1, description="of so many versions one is whole; a restarted engine reads from there on"
    )
    keep: int = Field(
        default=2, ge=2, description="versions that stay fetchable, with all that their chains need; one to go back to"
    )


class DirectConfig(_Chained):
    """Transport over the network: the trainer's process serves, the machines of the engines fetch."""

    kind: Literal["direct"] = "direct"
    host: str = Field(default="127.0.0.1", description="address to listen at; engines elsewhere need one they reach")
    advertised_host: str = Field(
        default="", description="what engines are told to fetch from; empty: host, or this machine's name for 0.0.0.0"
    )
    port: int = Field(default=0, ge=0, le=65535, description="0: any that is free")


class CheckpointConfig(_Chained):
    """Transport through storage that trainer and engines reach: a folder, or any URL that fsspec opens."""

    kind: Literal["checkpoint"] = "checkpoint"
    location: str = Field(
        default="", description='folder or URL, as "s3://bucket/run" (install s3fs); empty: in the run\'s directory'
    )


def _from_word(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


TransportConfig = Annotated[
    MemoryConfig | DirectConfig | CheckpointConfig, Field(discriminator="kind"), BeforeValidator(_from_word)
]
"""What `publish.transport` may be; a bare word is the kind, with its defaults."""


class PublisherConfig(BaseModel):
    """Options of bringing new weights to the engines."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    transport: TransportConfig = Field(default_factory=MemoryConfig, description="how weights travel: see `kind`")
    in_flight: InFlight = Field(default=InFlight.HOLD, description="what the pause does to requests in flight")
    cache: CachePolicy = Field(
        default=CachePolicy.KEEP, description="what the commit does to keys and values of the old weights"
    )
    stage_timeout_s: float = Field(default=120.0, gt=0, description="deadline for fetching and decoding")
    commit_timeout_s: float = Field(default=60.0, gt=0, description="deadline for pause, commit, checks and resume")
    attempts: int = Field(default=3, ge=1, description="tries of one call to a replica; its answer may have been lost")
    retry_pause_s: float = Field(default=0.5, ge=0, description="between two tries of a call")
    canary_tokens: int = Field(
        default=128, ge=2, description="length of the canary, at most: engines score it while they stand still"
    )
    canary_tolerance: float = Field(
        default=0.1, gt=0, description="largest mean |difference| of canary log-probabilities, engine against trainer"
    )
