"""Configuration of the engine: one model for each kind, told apart by `kind`; restarts and routing.

Law: no torch and no adapter here; whoever launches an engine reads this. All kinds have `replicas`, `dtype` and
`max_model_len`, so that the rest of the configuration can be checked against any of them.

    engine = "vllm"                               a bare word is the kind, with its defaults
    [engine]                                      no kind: embedded
    [engine] kind = "vllm"  urls = ["http://…"]   servers that run already
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from muster.engine.timing import EngineTiming


class EmbeddedEngineConfig(BaseModel):
    """A small engine in a process of its own, on the CPU."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["embedded"] = "embedded"
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


class VllmConfig(BaseModel):
    """vLLM servers: started here, or running already at `urls`.

    Example: `VllmConfig(replicas=2, python="/opt/vllm/bin/python", extra_args=("--enforce-eager",))`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["vllm"] = "vllm"
    replicas: int = Field(default=1, ge=1, description="servers that are started; those of `urls` count themselves")
    dtype: Literal["bfloat16", "float16", "float32"] = Field(default="bfloat16", description="serving precision")
    max_model_len: int = Field(default=1024, ge=16, description="tokens of prompt and completion together")
    max_streams: int = Field(default=64, ge=1, description="requests that run at once; more wait")
    python: str = Field(default="", description="interpreter that has vllm; empty: the one that runs muster")
    urls: tuple[str, ...] = Field(default=(), description="running servers that load Muster's middleware, not started")
    device: Literal["cpu", "gpu"] = Field(default="cpu", description="which build of vllm the interpreter has")
    gpus: tuple[int, ...] = Field(
        default=(), description="GPU: device number of each replica, counted from 0; empty: 0, 1, …"
    )
    kv_cache_gib: float | None = Field(
        default=None, gt=0, description="memory for keys and values; none: 1 on the CPU, what is left on a GPU"
    )
    gpu_memory_utilization: float = Field(default=0.85, gt=0, le=1, description="GPU: share of its memory")
    block_tokens: int | None = Field(default=None, ge=1, description="granularity of the prefix cache; none: vllm's")
    eager: bool = Field(default=True, description="no compilation: starts sooner, decodes slower")
    threads: int = Field(
        default=0, ge=0, description="CPU: threads of a replica; 0: the available cores, divided among the replicas"
    )
    session_header: str = Field(
        default="X-Session-ID", min_length=1, description="by which a router before the servers keeps a session"
    )
    extra_args: tuple[str, ...] = Field(default=(), description="further arguments of vllm's server")
    start_timeout_s: float = Field(default=600.0, gt=0, description="until a server answers")
    request_timeout_s: float = Field(default=600.0, gt=0, description="deadline of one generate call")
    control_timeout_s: float = Field(default=120.0, gt=0, description="deadline of any other call")

    @model_validator(mode="after")
    def _one_place_per_replica(self) -> VllmConfig:
        if self.gpus and self.device == "cpu":
            raise ValueError('gpus is set, but device = "cpu"; set device = "gpu"')
        if self.gpus and len(self.gpus) != self.replicas:
            raise ValueError(f"gpus names devices for {len(self.gpus)} replicas, replicas = {self.replicas}")
        if self.urls and len(self.urls) != self.replicas:
            raise ValueError(f"urls names {len(self.urls)} servers, replicas = {self.replicas}")
        return self


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


def _kind_of(value: Any) -> str:
    if isinstance(value, dict):
        return str(cast("dict[str, Any]", value).get("kind", "embedded"))
    return str(getattr(value, "kind", "embedded"))


def _from_word(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


EngineConfig = Annotated[
    Annotated[EmbeddedEngineConfig, Tag("embedded")]
    | Annotated[VllmConfig, Tag("vllm")]
    | Annotated[SglangConfig, Tag("sglang")],
    Discriminator(_kind_of),
    BeforeValidator(_from_word),
]
"""What `engine` may be in a run's configuration."""


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


class ServersConfig(BaseModel):
    """Options of restarting a server that ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    restarts_per_hour: int = Field(
        default=6, ge=0, description="of one replica; one that ends more often is given up. 0: never start one again"
    )
    first_delay_s: float = Field(default=1.0, ge=0, description="before a restart; doubles with each within an hour")
    longest_delay_s: float = Field(default=60.0, ge=0, description="where the doubling ends")
    wedged_s: float = Field(
        default=300.0,
        gt=0,
        description="a server that runs and has not said for so long how it is, though it was asked, is ended and "
        "started again; longer than any call that keeps it from answering, such as sglang's update of weights",
    )


Policy = Literal["affinity", "round_robin", "least_loaded", "consistent_hash"]


class RouterConfig(BaseModel):
    """Options of routing turns to replicas, and of how long a call may take.

    Example: `RouterConfig(policy="least_loaded")`
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Policy = Field(
        default="affinity", description="affinity: sessions stay where their cache is, and wait for memory"
    )
    siblings_together: int = Field(
        default=2,
        ge=0,
        description="a sibling goes where its group's prompt is while that replica has fewer sessions more than "
        "another; siblings are alike, and a group of long ones in one place makes it hot",
    )
    admission: bool = Field(default=True, description="affinity: a session without cache waits until its context fits")
    hold_s: float | None = Field(
        default=None, ge=0, description="idle residents keep their room so long while others wait; None: M / P"
    )
    headroom: float = Field(
        default=0.02, ge=0, lt=1, description="share of a replica's cache that is promised to nobody"
    )
    request_timeout_s: float = Field(default=1800.0, gt=0, description="deadline of one request at one replica")
    probe_timeout_s: float = Field(default=10.0, gt=0, description="deadline of asking a replica how it is")
    probe_every_s: float = Field(default=2.0, gt=0, description="how often a replica that does not serve is asked")
    wait_s: float = Field(default=600.0, gt=0, description="how long a call waits while no replica serves")
    attempts: int = Field(default=3, ge=1, description="tries of one call, on other replicas where there are any")
