"""One way to start a replica, whichever kind the configuration names.

Law: the only file that knows all kinds. Whoever has the replica cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from muster.engine.config import EmbeddedEngineConfig, EngineConfig, SglangConfig
from muster.engine.embedded.launch import launch as launch_embedded
from muster.engine.port import Replica
from muster.engine.sglang.launch import launch as launch_sglang
from muster.engine.vllm.launch import launch as launch_vllm


def is_ours(config: EngineConfig) -> bool:
    """Whether its servers are started here, and so may be ended here; those at `urls` belong to somebody else."""
    return isinstance(config, EmbeddedEngineConfig) or not config.urls


@asynccontextmanager
async def launch(
    config: EngineConfig,
    model_dir: Path,
    name: str,
    *,
    index: int = 0,
    version: int = 0,
    on_end: Callable[[str], None] = lambda words: None,
    log: Path | None = None,
) -> AsyncGenerator[Replica]:
    """Start, or find, the `index`-th replica of `config`, and yield it when it is ready.

    version: number of the weights in `model_dir`. on_end: called with the process's last words if it ends by itself.
    log: what the process says is appended to it.
    Errors: `ConfigError` for what a user must change, `EngineError` with the server's own words.

    Example:
        async with launch(VllmConfig(), model, "engine0") as replica:
            await replica.score(tokens, temperature=0.7)
    """
    if isinstance(config, EmbeddedEngineConfig):
        launched = launch_embedded(config, model_dir, name, version=version, on_end=on_end, log=log)
    elif isinstance(config, SglangConfig):
        launched = launch_sglang(config, model_dir, name, index=index, version=version, on_end=on_end, log=log)
    else:
        launched = launch_vllm(config, model_dir, name, index=index, version=version, on_end=on_end, log=log)
    async with launched as replica:
        yield replica
