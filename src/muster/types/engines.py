"""Sampling and weights: requests, completions, versions, publications, evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from muster.types.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The policy is softmax(logits / temperature): engine and trainer use the same one."""

    temperature: float = 1.0
    max_tokens: int = 256
    stop_tokens: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Session that a request belongs to. Engines and routers keep a session where its cache is."""

    id: str
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Answer of an engine to one request.

    tokens_T, logprobs_T (after temperature), versions_T: one entry per sampled token, the stop token included.
    The `*_s` fields split the time the request spent inside the engine; they need not cover transport.
    """

    tokens_T: Ints
    logprobs_T: Floats
    versions_T: Ints
    finish: Literal["stop", "length", "abort"]
    cached_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    recompute_s: float = 0.0
    decode_s: float = 0.0
    paused_s: float = 0.0
    replica: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A published policy: a counter and the digest of its weights."""

    number: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """New weights on their way to the engines. `location` is a path or URL that the transport understands.

    Example: `Publication(version=v3, transport="memory", location="/dev/shm/w3.safetensors", size_bytes=n,
    dtype="bfloat16")`
    """

    version: Version
    transport: Literal["memory", "direct", "checkpoint"]
    location: str
    size_bytes: int  # what travels, compressed
    dtype: str
    form: Literal["whole", "delta", "adapter"] = "whole"
    base: Version | None = None  # what a delta or an adapter is applied to
    max_bytes_per_s: float | None = None  # a receiver fetches no faster, so that staging does not starve serving


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationRecord:
    """Record of a publication reaching one replica. `latency_s` counts from the end of the trainer's step.

    trained ── export_s ──► published ── stage_s: transfer_s, then decoding ──► staged ── pause_s ──► serving
                                                                                          └ commit_s ┘
    `pause_s` is what serving lost: waiting for requests that finish, `commit_s`, the checks, and resuming.
    """

    version: Version
    replica: str
    export_s: float
    stage_s: float
    commit_s: float
    pause_s: float
    latency_s: float
    size_bytes: int
    digest_equal: bool
    canary_difference: float | None  # mean |Δ log-probability| engine vs trainer on fixed tokens; None: not taken
    held: int = 0  # requests held in flight
    aborted: int = 0
    finished: int = 0
    transfer_s: float = 0.0  # fetching the bytes; a part of stage_s
    recomputed_tokens: int = 0  # of held requests, prefilled again under the new weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Pass rate on held-out tasks at one pinned version, with everything that made the number."""

    step: int
    version: Version
    tasks: int
    graded: int
    passed: int
    pass_rate: float
    low: float  # 95 % Wilson interval
    high: float
    by_family: Mapping[str, tuple[int, int]]  # family -> (passed, graded)
    ungraded: Mapping[str, int]  # cause -> count; excluded from the rate
    fingerprint: Mapping[str, Any]  # model digest, engine, version, dtype, sampling, task set digest
    started: float
    ended: float
