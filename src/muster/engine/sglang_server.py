"""Starts an SGLang server, or finds one that runs already, and hands out a replica.

    SglangConfig ─► command, environment, key file ─► process ─► /health ─► SglangReplica.connect

Law: the server is stock. Its key is in a file that only we can read, because arguments are for everyone. Options were
read from release 0.5.23, which does not run here: the command is tested as text, and `connect` on a double.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from muster.engine.endpoint import Endpoint
from muster.engine.process import spawn
from muster.engine.sglang import SglangReplica
from muster.engine.sglang_config import SglangConfig
from muster.engine.sglang_wire import label_of
from muster.errors import EngineError
from muster.transport.base import BaseWeights
from muster.transport.files import SHARED_MEMORY
from muster.transport.receive import Receiver
from muster.types import Version

TOKEN_VARIABLE = "MUSTER_ENGINE_TOKEN"
"""Environment variable with the key of the servers at `urls`."""

_BEFORE_TEMPERATURE = "SGLANG_RETURN_ORIGINAL_LOGPROB"
_PROBE_S = 5.0
_GRACE_S = 10.0


@asynccontextmanager
async def launch(
    config: SglangConfig,
    model_dir: Path,
    name: str,
    *,
    index: int = 0,
    version: int = 0,
    on_end: Callable[[str], None] = lambda words: None,
) -> AsyncIterator[SglangReplica]:
    """A replica that is ready, the `index`-th of `config`.

    version: number of the weights in `model_dir`. on_end: called with the process's last words if it ends by itself.
    Raises `EngineError` with the server's own last words, or with what it must be started with.
    """
    digest = await asyncio.to_thread(BaseWeights(model_dir).digest, config.dtype)
    first = Version(number=version, digest=digest)
    if config.urls:
        token = os.environ.get(TOKEN_VARIABLE)
        async with _replica(config, model_dir, name, config.urls[index], token, first) as replica:
            yield replica
        return
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="muster-sglang-") as folder:
        key_file = Path(folder) / "key.yaml"
        key_file.touch(mode=0o600)
        key_file.write_text(json.dumps({"api-key": token}))  # JSON is YAML
        port = _free_port()
        command = server_command(config, model_dir, port=port, version=first, index=index, key_file=key_file)
        environment = server_environment(config, os.environ, index=index)
        url = f"http://127.0.0.1:{port}"
        async with spawn(command, name=name, env=environment, grace_s=_GRACE_S) as server:
            server.on_end(on_end)
            await server.ready_when(lambda: _healthy(name, url), config.start_timeout_s)
            async with _replica(config, model_dir, name, url, token, first) as replica:
                server.on_end(replica.pronounce_dead)
                yield replica


def server_command(
    config: SglangConfig, model_dir: Path, *, port: int, version: Version, index: int, key_file: Path
) -> list[str]:
    """Without a tokenizer: ids go in and come out, and nothing is trimmed."""
    command = [config.python or sys.executable, "-m", "sglang.launch_server", "--config", str(key_file)]
    command += ["--model-path", str(model_dir), "--skip-tokenizer-init", "--weight-version", label_of(version)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning", "--enable-metrics"]
    command += ["--dtype", config.dtype, "--context-length", str(config.max_model_len)]
    command += ["--max-running-requests", str(config.max_streams)]
    command += ["--mem-fraction-static", str(config.memory_fraction), "--tp-size", str(len(_gpus(config, index)))]
    if not config.overlap:
        command += ["--disable-overlap-schedule"]
    if config.deterministic:
        command += ["--enable-deterministic-inference"]
    return [*command, *config.extra_args]


def server_environment(config: SglangConfig, ours: Mapping[str, str], *, index: int) -> dict[str, str]:
    """All of the server's environment."""
    environment = {key: value for key, value in ours.items() if key not in (_BEFORE_TEMPERATURE, TOKEN_VARIABLE)}
    devices = ",".join(str(gpu) for gpu in _gpus(config, index))
    return environment | {"CUDA_VISIBLE_DEVICES": devices, "HF_HUB_OFFLINE": "1"}


def _gpus(config: SglangConfig, index: int) -> tuple[int, ...]:
    return config.gpus[index] if config.gpus else (index,)


def _replica(
    config: SglangConfig, model_dir: Path, name: str, url: str, token: str | None, version: Version
) -> SglangReplica:
    return SglangReplica(
        name,
        url,
        token,
        version=version,
        receiver=Receiver(label=name, base=model_dir, directory=config.staging or SHARED_MEMORY),
        overlap=config.overlap,
        session_header=config.session_header,
        checksums=config.checksums,
        staging=config.staging,
        request_timeout_s=config.request_timeout_s,
        control_timeout_s=config.control_timeout_s,
    )


async def _healthy(name: str, url: str) -> bool:
    """It has generated a token."""
    endpoint = Endpoint(name, url, timeout_s=_PROBE_S)
    try:
        await endpoint.call("GET", "/health")
        return True
    except EngineError:
        return False
    finally:
        await endpoint.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
