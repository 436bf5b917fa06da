"""The HTTP dialect: vLLM's reinforcement-learning interface, with a few fields of ours.

Law: the JSON of every call is written down here, once, for server and client alike; neither knows the other.
Ours, absent in vLLM: `/score`, `/statistics`, `timings`, `digest`, `cache` and the counts of a pause.

    POST /inference/v1/generate     GenerateBody                    -> completion_to_json
                                    … with stream: true             -> `data: piece_to_json` lines, one for each piece
    POST /score                     ScoreBody                       -> scores_to_json
    POST /pause?mode=keep|wait|abort&clear_cache=false              -> {status, held, finished, aborted, held_tokens}
    POST /resume   POST /abort_requests {request_ids?}   POST /reset_prefix_cache?reset_running_requests=
    POST /start_weight_update       {}
    POST /update_weights            {update_info: Publication}      staged when this answers
    POST /finish_weight_update      {weight_version, digest, cache} committed when this answers
    GET  /weight_info /is_paused /health /statistics /metrics
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from itertools import groupby
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from muster.engine.pieces import Piece
from muster.engine.port import CachePolicy, DeviceInterval, EngineStatistics, InFlight, Pause, Scores, Staged
from muster.types import Completion, DeviceState, Ints, Publication, Sampling, Session, Version

SESSION_HEADER = "X-Session-ID"
TOKEN_VARIABLE = "MUSTER_ENGINE_TOKEN"
"""Environment variable with the key of a server: on its side, and on ours for those that run already."""

PAUSE_MODES = {"keep": InFlight.HOLD, "wait": InFlight.FINISH, "abort": InFlight.ABORT}
_MODE_OF = {in_flight: mode for mode, in_flight in PAUSE_MODES.items()}
_TIMINGS = ("queue_s", "prefill_s", "recompute_s", "decode_s", "paused_s")


class SamplingBody(BaseModel):
    """Unknown sampling parameters are refused: whatever reshapes the distribution changes the policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(default=1.0, ge=0)
    max_tokens: int = Field(default=16, ge=1)
    seed: int | None = Field(default=None, ge=0)
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = Field(default=0, ge=0, le=0)  # of the sampled token alone
    top_p: float = Field(default=1.0, ge=1, le=1)
    top_k: int = Field(default=0, ge=-1, le=0)

    def sampling(self) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            stop_tokens=self.stop_token_ids,
            seed=self.seed,
        )


class GenerateBody(BaseModel):
    model_config = ConfigDict(frozen=True)

    token_ids: list[int] = Field(min_length=1)
    sampling_params: SamplingBody = SamplingBody()
    request_id: str | None = None
    stream: bool = False


class ScoreBody(BaseModel):
    model_config = ConfigDict(frozen=True)

    token_ids: list[int] = Field(min_length=1)
    temperature: float = Field(default=1.0, gt=0)


class AbortBody(BaseModel):
    model_config = ConfigDict(frozen=True)

    request_ids: list[str] | None = None


class BaseBody(BaseModel):
    """Base weights that a delta or an adapter is applied to."""

    model_config = ConfigDict(frozen=True)

    number: int = Field(ge=0)
    digest: str


class UpdateInfo(BaseModel):
    model_config = ConfigDict(frozen=True)

    number: int = Field(ge=0)
    digest: str
    transport: Literal["memory", "direct", "checkpoint"]
    location: str
    size_bytes: int = Field(default=0, ge=0)
    dtype: str
    form: Literal["whole", "delta", "adapter"] = "whole"
    base: BaseBody | None = None
    max_bytes_per_s: float | None = Field(default=None, gt=0)

    def publication(self) -> Publication:
        return Publication(
            version=Version(number=self.number, digest=self.digest),
            transport=self.transport,
            location=self.location,
            size_bytes=self.size_bytes,
            dtype=self.dtype,
            form=self.form,
            base=None if self.base is None else Version(number=self.base.number, digest=self.base.digest),
            max_bytes_per_s=self.max_bytes_per_s,
        )


class UpdateBody(BaseModel):
    model_config = ConfigDict(frozen=True)

    update_info: UpdateInfo


class FinishBody(BaseModel):
    model_config = ConfigDict(frozen=True)

    weight_version: int = Field(ge=0)
    digest: str
    cache: CachePolicy = CachePolicy.KEEP

    @property
    def version(self) -> Version:
        return Version(number=self.weight_version, digest=self.digest)


def generate_to_json(tokens: Ints, sampling: Sampling, request_id: str, *, stream: bool = False) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": list(sampling.stop_tokens),
        "logprobs": 0,
    }
    if sampling.seed is not None:
        parameters["seed"] = sampling.seed
    body: dict[str, Any] = {"request_id": request_id, "token_ids": tokens.tolist(), "sampling_params": parameters}
    return {**body, "stream": True} if stream else body


def session_headers(session: Session, name: str = SESSION_HEADER) -> dict[str, str]:
    return {name: session.id}


def completion_to_json(completion: Completion, request_id: str, prompt_tokens: int) -> dict[str, Any]:
    tokens = completion.tokens_T.tolist()
    content = [
        {"token": f"token_id:{token}", "logprob": logprob}
        for token, logprob in zip(tokens, completion.logprobs_T.tolist(), strict=True)
    ]
    choice = {
        "index": 0,
        "token_ids": tokens,
        "logprobs": {"content": content},
        "finish_reason": completion.finish,
    }
    return {
        "request_id": request_id,
        "choices": [choice],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(tokens),
            "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
        },
        "weight_versions": _spans(completion.versions_T),
        "timings": {name: getattr(completion, name) for name in _TIMINGS},
    }


def completion_from_json(body: Mapping[str, Any], replica: str) -> Completion:
    """Raises `KeyError`, `ValueError` or `TypeError` on an answer that is not of this dialect."""
    choice = body["choices"][0]
    tokens_T = np.array(choice["token_ids"], dtype=np.int32)
    logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    versions_T = np.full(len(tokens_T), -1, dtype=np.int32)
    for span in choice.get("weight_versions") or body["weight_versions"]:
        versions_T[span["start"] : span["end"]] = int(span["version"])
    if len(logprobs) != len(tokens_T) or (versions_T < 0).any():
        raise ValueError("a sampled token without log-probability or version")
    usage: Mapping[str, Any] = body.get("usage") or {}
    details: Mapping[str, Any] = usage.get("prompt_tokens_details") or {}
    timings: Mapping[str, Any] = body.get("timings") or {}
    return Completion(
        tokens_T=tokens_T,
        logprobs_T=np.array(logprobs, dtype=np.float32),
        versions_T=versions_T,
        finish=choice["finish_reason"],
        cached_tokens=int(details.get("cached_tokens") or 0),
        replica=replica,
        **{name: float(timings.get(name, 0.0)) for name in _TIMINGS},
    )


def piece_to_json(piece: Piece, request_id: str, prompt_tokens: int) -> dict[str, Any]:
    """An event of a stream: a completion of the new tokens alone, without a reason to end until the last one."""
    body = completion_to_json(piece.completion, request_id, prompt_tokens)
    if not piece.last:
        body["choices"][0]["finish_reason"] = None
    return body


def piece_from_json(body: Mapping[str, Any], replica: str) -> Piece:
    """Raises as `completion_from_json`."""
    completion = completion_from_json(body, replica)
    last = body["choices"][0]["finish_reason"] is not None
    return Piece(completion=completion if last else replace(completion, finish="abort"), last=last)


def scores_to_json(scores: Scores) -> dict[str, Any]:
    return {"logprobs": scores.logprobs_T.tolist(), **version_to_json(scores.version)}


def scores_from_json(body: Mapping[str, Any]) -> Scores:
    logprobs_T = np.array(body["logprobs"], dtype=np.float32)
    return Scores(logprobs_T=logprobs_T, version=version_from_json(body))


def version_to_json(version: Version) -> dict[str, Any]:
    return {"weight_version": str(version.number), "digest": version.digest}


def version_from_json(body: Mapping[str, Any]) -> Version:
    return Version(number=int(body["weight_version"]), digest=str(body["digest"]))


def publication_to_json(publication: Publication) -> dict[str, Any]:
    info = asdict(publication)
    return {"update_info": info.pop("version") | info}


def staged_to_json(staged: Staged) -> dict[str, Any]:
    return {"status": "staged", **asdict(staged)}


def staged_from_json(body: Mapping[str, Any]) -> Staged:
    """Of a server that does not say what staging cost: zeros."""
    return Staged(
        transfer_s=float(body.get("transfer_s", 0.0)),
        decode_s=float(body.get("decode_s", 0.0)),
        size_bytes=int(body.get("size_bytes", 0)),
    )


def pause_mode(in_flight: InFlight) -> str:
    return _MODE_OF[in_flight]


def pause_to_json(pause: Pause) -> dict[str, Any]:
    return {"status": "paused", **asdict(pause)}


def pause_from_json(body: Mapping[str, Any]) -> Pause:
    """Of a server that does not count: zeros."""
    counts = ("held", "finished", "aborted", "held_tokens")
    return Pause(**{name: int(body.get(name, 0)) for name in counts})


def statistics_to_json(statistics: EngineStatistics) -> dict[str, Any]:
    """Shallow: whoever encodes it takes the dataclasses in it apart, which `asdict` does slowly."""
    return {field.name: getattr(statistics, field.name) for field in fields(statistics)}


def statistics_from_json(body: Mapping[str, Any]) -> EngineStatistics:
    intervals = tuple(
        DeviceInterval(state=DeviceState(i["state"]), start=i["start"], end=i["end"]) for i in body["intervals"]
    )
    whole: dict[str, Any] = {**body, "version": Version(**body["version"]), "intervals": intervals}
    return EngineStatistics(**whole)


def statistics_to_prometheus(statistics: EngineStatistics) -> str:
    """Prometheus text, under vLLM's names where vLLM has the metric."""
    s = statistics
    gauges = {
        "vllm:num_requests_running": s.running,
        "vllm:num_requests_waiting": s.waiting,
        "vllm:kv_cache_usage_perc": s.kv_used_tokens / s.kv_capacity_tokens,
        "muster:weight_version": s.version.number,
    }
    counters = {
        "vllm:prompt_tokens_total": s.prompt_tokens,
        "vllm:generation_tokens_total": s.generated_tokens,
        "vllm:prefix_cache_queries_total": s.prompt_tokens,
        "vllm:prefix_cache_hits_total": s.cached_tokens,
        "vllm:num_preemptions_total": s.preemptions,
        "muster:recomputed_tokens_total": s.recomputed_tokens,
    }
    label = f'{{replica="{s.replica}"}}'
    lines = [f"# TYPE {name} gauge\n{name}{label} {value}" for name, value in gauges.items()]
    lines += [f"# TYPE {name} counter\n{name}{label} {value}" for name, value in counters.items()]
    return "\n".join(lines) + "\n"


def _spans(versions_T: Ints) -> list[dict[str, Any]]:
    """Runs of equal version: [start, end) over the sampled tokens."""
    spans: list[dict[str, Any]] = []
    start = 0
    for version, run in groupby(versions_T.tolist()):
        end = start + len(list(run))
        spans.append({"version": str(version), "start": start, "end": end})
        start = end
    return spans
