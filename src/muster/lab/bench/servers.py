"""The servers that a benchmark starts on this machine.

Law: every context of the load has memory on each: what is measured is what the server does, not what it lacks.
"""

from __future__ import annotations

from muster.engine.config import EmbeddedEngineConfig, EngineConfig, VllmConfig
from muster.errors import UserError


def server_config(
    kind: str,
    *,
    python: str = "",
    replicas: int = 1,
    streams: int,
    max_model_len: int,
    vllm_block_tokens: int | None = None,
) -> EngineConfig:
    """kind: embedded or vllm. python: the interpreter that has vllm; empty: this one. streams: at once, on each.

    Raises `UserError` for another kind, or for an interpreter of the embedded engine, which runs in ours.
    """
    if kind not in ("embedded", "vllm"):
        raise UserError(f"--engine {kind}: it is embedded or vllm")
    if kind == "vllm":
        return VllmConfig(
            replicas=replicas,
            python=python,
            max_model_len=max_model_len,
            max_streams=streams,
            block_tokens=vllm_block_tokens,
        )
    if python:
        raise UserError("--python names the interpreter that has vllm; it goes with --engine vllm")
    return EmbeddedEngineConfig(
        replicas=replicas,
        max_streams=streams,
        max_model_len=max_model_len,
        kv_capacity_tokens=2 * streams * max_model_len,
    )
