"""Starts an SGLang server, or finds one that runs already, and hands out a replica.

    SglangConfig ─► what the interpreter has ─► command, environment, key file ─► process ─► /health ─► SglangReplica
                       └─ ConfigError: what to install                                                 └─ connects

Law: the server is stock. Its key is in a file that only we can read, because arguments are for everyone. Options were
read from release 0.5.23, which does not run here: the command is tested as text, and `connect` on a double.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from muster.engine.config import SglangConfig
from muster.engine.http.wire import TOKEN_VARIABLE
from muster.engine.servers.interpreter import installed, interpreter, require
from muster.engine.servers.started import answering, held_ports, started
from muster.engine.sglang.replica import SglangReplica
from muster.engine.sglang.wire import label_of
from muster.transport.base import BaseWeights
from muster.transport.files import SHARED_MEMORY
from muster.transport.receive import Receiver
from muster.types import Version

OLDEST = (0, 5, 23)
_BEFORE_TEMPERATURE = "SGLANG_RETURN_ORIGINAL_LOGPROB"


@asynccontextmanager
async def launch(
    config: SglangConfig,
    model_dir: Path,
    name: str,
    *,
    index: int = 0,
    version: int = 0,
    on_end: Callable[[str], None] = lambda words: None,
    log: Path | None = None,
) -> AsyncGenerator[SglangReplica]:
    """A replica that is ready, the `index`-th of `config`.

    version: number of the weights in `model_dir`. on_end: called with the process's last words if it ends by itself.
    log: what the process says is appended to it.
    Raises `ConfigError` that says what to install, `EngineError` with the server's own last words, or with what it must
    be started with.
    """
    if config.urls:
        first, token = await _first(config, model_dir, version), os.environ.get(TOKEN_VARIABLE)
        async with _replica(config, model_dir, name, config.urls[index], token, first) as replica:
            yield replica
        return
    python = interpreter(config.python)
    found = await installed(python, ("sglang",))
    require(found, "sglang", python, oldest=OLDEST, install=f"sglang>={'.'.join(map(str, OLDEST))}")
    first = await _first(config, model_dir, version)
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="muster-sglang-") as folder, held_ports(1) as (port,):
        key_file = Path(folder) / "key.yaml"
        key_file.touch(mode=0o600)
        key_file.write_text(json.dumps({"api-key": token}))  # JSON is YAML
        command = server_command(config, model_dir, port=port, version=first, index=index, key_file=key_file)
        async with started(
            [python, *command],
            name=name,
            env=server_environment(config, os.environ, index=index),
            ready=lambda server: answering(server, f"http://127.0.0.1:{port}", config.start_timeout_s),
            replica=lambda url: _replica(config, model_dir, name, url, token, first),
            on_end=on_end,
            log=log,
        ) as replica:
            yield replica


def server_command(
    config: SglangConfig, model_dir: Path, *, port: int, version: Version, index: int, key_file: Path
) -> list[str]:
    """Arguments after the interpreter. Without a tokenizer: ids go in and come out, and nothing is trimmed."""
    command = ["-m", "sglang.launch_server", "--config", str(key_file)]
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


async def _first(config: SglangConfig, model_dir: Path, number: int) -> Version:
    """Version that a server has after loading `model_dir`."""
    digest = await asyncio.to_thread(BaseWeights(model_dir).digest, config.dtype)
    return Version(number=number, digest=digest)


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
