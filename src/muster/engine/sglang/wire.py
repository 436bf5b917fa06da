"""SGLang's HTTP dialect: the JSON of every call, written down once. Read from release 0.5.23.

Law: this file knows bodies and answers, no connection and no state. What a server may leave out is named here.

    POST /generate                    generate_body, score_body        -> {output_ids, meta_info}, one for each prompt
    POST /pause_generation            {mode: in_place | retract}
    POST /continue_generation         {torch_empty_cache}
    POST /update_weights_from_disk    update_body                      -> {success, message}
    POST /weights_checker             {action: checksum}               -> {per_engine_checksum, ranks}
    POST /abort_request               {rid} or {abort_all}
    GET  /model_info                  {weight_version, model_path, ...}
    GET  /server_info                 {disable_overlap_schedule, version, ...}
    GET  /v1/loads?include=core       {loads: [{num_running_reqs, num_waiting_reqs, num_used_tokens, ...}]}

A server keeps one word for its weights and labels spans of sampled tokens with it. Ours is "NUMBER:DIGEST", so that
whoever asks a server knows exactly what it says it serves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from muster.types import Completion, Floats, Ints, Sampling, Session, Version

UNLABELLED = "default"
"""The word of a server that was started without `--weight-version`."""

_LABEL = re.compile(r"(\d+):(\S+)")
_NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "n": 1,
}
"""Sent with every request: a server may have preferences of its own, and each of these changes the policy."""


def label_of(version: Version) -> str:
    return f"{version.number}:{version.digest}"


def version_of(label: str) -> Version | None:
    """None for a word that is not one of ours."""
    match = _LABEL.fullmatch(label)
    return None if match is None else Version(number=int(match[1]), digest=match[2])


def generate_body(tokens: Ints, sampling: Sampling, session: Session, *, rid: str, salt: str) -> dict[str, Any]:
    """A server stops at its model's end tokens beside `stop_tokens`, or with `ignore_eos` at none at all."""
    parameters: dict[str, Any] = {
        **_NEUTRAL,
        "temperature": sampling.temperature,
        "max_new_tokens": sampling.max_tokens,
        "stop_token_ids": list(sampling.stop_tokens),
        "ignore_eos": not sampling.stop_tokens,
        "no_stop_trim": True,
    }
    if sampling.seed is not None:
        parameters["sampling_seed"] = sampling.seed
    return {
        "rid": rid,
        "session_id": session.id,
        "input_ids": tokens.tolist(),
        "sampling_params": parameters,
        "return_logprob": True,
        "cache_salt": salt,
        "stream": False,
    }


def completion_from(answer: Mapping[str, Any], *, replica: str, paused_s: float) -> Completion:
    """Raises `KeyError`, `ValueError` or `TypeError` on an answer that is not of this dialect.

    A server that keeps no metrics does not say how long a request waited; none says what recomputing cost.
    """
    meta = answer["meta_info"]
    tokens, logprobs = answer["output_ids"], meta["output_token_logprobs"]
    if [entry[1] for entry in logprobs] != tokens:
        raise ValueError("log-probabilities of other tokens than those that were sampled")
    queue_s = max(0.0, float(meta.get("queue_time") or 0.0))
    prefill_s = max(0.0, float(meta.get("prefill_finished_time", 0.0)) - float(meta.get("forward_entry_time", 0.0)))
    decode_s = max(0.0, float(meta.get("e2e_latency") or 0.0) - queue_s - prefill_s - paused_s)
    return Completion(
        tokens_T=np.array(tokens, dtype=np.int32),
        logprobs_T=np.array([entry[0] for entry in logprobs], dtype=np.float32),
        versions_T=_versions(meta, len(tokens)),
        finish=meta["finish_reason"]["type"],
        cached_tokens=int(meta.get("cached_tokens") or 0),
        queue_s=queue_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
        paused_s=paused_s,
        replica=replica,
    )


def retractions_from(answer: Mapping[str, Any]) -> int:
    """Number of times that the request was put back into the queue, and computed again."""
    return int(answer["meta_info"].get("num_retractions") or 0)


def _versions(meta: Mapping[str, Any], length: int) -> Ints:
    """Spans come with a request that has ended; one aborted before it ran may have none, and no tokens."""
    versions_T = np.full(length, -1, dtype=np.int32)
    for span in meta.get("weight_versions", ()):
        versions_T[span["start"] : span["end"]] = known(span["version"]).number
    if (versions_T < 0).any():
        raise ValueError("a sampled token without a version")
    return versions_T


def known(label: str) -> Version:
    """As `version_of`. Raises `ValueError` for a word that is not one of ours."""
    version = version_of(label)
    if version is None:
        raise ValueError(f"weights of unknown version {label!r}")
    return version


def score_body(tokens: Ints, temperature: float, *, rid: str, salt: str) -> dict[str, Any]:
    """Log-probabilities of a prompt's tokens are before temperature; those of sampled ones after it.

    At temperature 1 one request asks for those of the prompt. At any other each token is asked for as the first one to
    be sampled after those before it: one request for every prefix, in one batch, that shares the cache.
    """
    if _in_one(tokens, temperature):
        prompts, more = [tokens.tolist()], {"logprob_start_len": 0}
        limit = 0
    else:
        prompts = [tokens[:end].tolist() for end in range(1, len(tokens))]
        more, limit = {"token_ids_logprob": [[token] for token in tokens[1:].tolist()]}, 1
    parameters = {**_NEUTRAL, "temperature": temperature, "max_new_tokens": limit, "ignore_eos": True}
    return {
        "rid": [f"{rid}-{i}" for i in range(len(prompts))],
        "input_ids": prompts,
        "sampling_params": parameters,
        "return_logprob": True,
        "cache_salt": salt,
        "stream": False,
        **more,
    }


def scores_from(answers: Sequence[Mapping[str, Any]], tokens: Ints, temperature: float) -> tuple[Floats, Version]:
    """As `engine.port.Scores`. Raises as `completion_from`, and when the answers are of several versions."""
    logprobs_T = np.zeros(len(tokens), dtype=np.float32)
    metas = [answer["meta_info"] for answer in answers]
    if _in_one(tokens, temperature):
        asked = [(entry[1], entry[0]) for entry in metas[0]["input_token_logprobs"]]
    else:
        asked = [(tokens[0], None)] + [_asked(meta) for meta in metas]
    if [token for token, _ in asked] != tokens.tolist():
        raise ValueError("log-probabilities of other tokens than those that were scored")
    logprobs_T[1:] = [logprob for _, logprob in asked[1:]]
    (label,) = sorted({str(meta["weight_version"]) for meta in metas})
    return logprobs_T, known(label)


def _in_one(tokens: Ints, temperature: float) -> bool:
    return temperature == 1 or len(tokens) == 1


def _asked(meta: Mapping[str, Any]) -> tuple[int, float]:
    ((logprob, token, _),) = meta["output_token_ids_logprobs"][0]
    return token, logprob


def probe_body(tokens: Sequence[int], temperature: float, *, rid: str) -> dict[str, Any]:
    """Asks for the log-probabilities of `tokens` as the one that is sampled after the first of them."""
    parameters = {**_NEUTRAL, "temperature": temperature, "max_new_tokens": 1, "ignore_eos": True}
    return {
        "rid": rid,
        "input_ids": [tokens[0]],
        "sampling_params": parameters,
        "return_logprob": True,
        "token_ids_logprob": list(tokens),
        "stream": False,
    }


def probe_from(answer: Mapping[str, Any]) -> Floats:
    return np.array([entry[0] for entry in answer["meta_info"]["output_token_ids_logprobs"][0]], dtype=np.float32)


def update_body(folder: Path, version: Version, *, flush: bool) -> dict[str, Any]:
    return {
        "model_path": str(folder),
        "weight_version": label_of(version),
        "flush_cache": flush,
        "abort_all_requests": False,
    }
