"""Parts that tests of a real vLLM server share. They run where MUSTER_VLLM_PYTHON names an interpreter that has
one: `make test-vllm`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import tiny_llama as tiny
from muster.engine.config import VllmConfig
from muster.model.config import LlamaConfig

PYTHON = os.environ.get("MUSTER_VLLM_PYTHON", "")
NEEDED = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="needs a vllm server: make test-vllm"),
]
MODEL: LlamaConfig = replace(tiny.CONFIG, head_width=32)
"""vLLM's attention on the CPU has no heads narrower than 32."""

BLOCK_TOKENS = 32


def config(dtype: str = "float32") -> VllmConfig:
    return VllmConfig.model_validate(
        {
            "python": PYTHON,
            "dtype": dtype,
            "max_streams": 8,
            "max_model_len": 1024,
            "block_tokens": BLOCK_TOKENS,
            "kv_cache_gib": 0.25,
            "threads": 1,
            "request_timeout_s": 120,
        }
    )


def write_model(folder: Path) -> Path:
    return tiny.write_model(folder, config=MODEL)
