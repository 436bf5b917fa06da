"""Start of an SGLang server. What is started here is the double, in the server's place."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import tiny_llama as tiny
from muster import clock
from muster.engine.config import SglangConfig
from muster.engine.sglang.launch import launch, server_command, server_environment
from muster.errors import ConfigError, EngineError
from muster.model import weights
from muster.transport.base import BaseWeights
from muster.types import Sampling, Session, Version

pytestmark = pytest.mark.model

SERVER = """
import argparse, asyncio, json, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from aiohttp import web

async def main():
    parser = argparse.ArgumentParser()
    for flag in ("config", "model-path", "weight-version", "host", "port", "log-level", "dtype", "context-length",
                 "max-running-requests", "mem-fraction-static", "tp-size"):
        parser.add_argument("--" + flag, required=True)
    for flag in ("skip-tokenizer-init", "enable-metrics", "disable-overlap-schedule"):
        parser.add_argument("--" + flag, action="store_true")
    options = parser.parse_args()
    from engine.sglang.sglang_double import Double
    key = json.loads(Path(options.config).read_text())["api-key"]
    double = Double(Path(options.model_path), weight_version=options.weight_version, api_key=key,
                    overlap=not options.disable_overlap_schedule)
    runner = web.AppRunner(double.application())
    await runner.setup()
    await web.TCPSite(runner, options.host, int(options.port)).start()
    await double.scheduler.loop()

asyncio.run(main())
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.write_model(tmp_path / "model")


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Package that `python -m sglang.launch_server` finds."""
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    installed = package.parent / "sglang-0.5.23.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
    (package / "launch_server.py").write_text(SERVER.format(tests=str(Path(tiny.__file__).parent)))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


def command(config: SglangConfig, index: int = 0) -> list[str]:
    version = Version(number=2, digest="abc")
    return server_command(
        config, Path("/models/m"), port=30000, version=version, index=index, key_file=Path("/run/key.yaml")
    )


def test_a_server_starts_with_its_label_and_without_a_secret_in_its_arguments() -> None:
    words = command(SglangConfig(max_model_len=2048, extra_args=("--trust-remote-code",)))
    assert words[:4] == ["-m", "sglang.launch_server", "--config", "/run/key.yaml"]
    assert words[words.index("--weight-version") + 1] == "2:abc"
    assert words[words.index("--context-length") + 1] == "2048"
    assert words[-1] == "--trust-remote-code"
    assert not any("api-key" in word for word in words)


def test_each_replica_has_devices_of_its_own() -> None:
    config = SglangConfig(replicas=2, gpus=((0, 1), (2, 3)))
    assert server_environment(config, {}, index=1)["CUDA_VISIBLE_DEVICES"] == "2,3"
    words = command(config, index=1)
    assert words[words.index("--tp-size") + 1] == "2"
    assert server_environment(SglangConfig(replicas=2), {}, index=1)["CUDA_VISIBLE_DEVICES"] == "1"


def test_what_would_put_log_probabilities_before_temperature_is_not_passed_on() -> None:
    assert "SGLANG_RETURN_ORIGINAL_LOGPROB" not in server_environment(
        SglangConfig(), {"SGLANG_RETURN_ORIGINAL_LOGPROB": "1", "PATH": "/bin"}, index=0
    )


def test_schedules_are_as_configured() -> None:
    assert "--disable-overlap-schedule" not in command(SglangConfig())
    assert "--disable-overlap-schedule" in command(SglangConfig(overlap=False))
    assert "--enable-deterministic-inference" in command(SglangConfig(deterministic=True))


@pytest.mark.parametrize(
    "wrong", [{"replicas": 2, "gpus": ((0,),)}, {"gpus": ((),)}, {"urls": ("http://a", "http://b")}, {"gpu": 1}]
)
def test_a_configuration_that_contradicts_itself_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SglangConfig.model_validate(wrong)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_first_version_is_the_one_that_a_trainer_computes(model: Path, dtype: str) -> None:
    _, state = weights.load(model, getattr(torch, dtype))
    assert BaseWeights(model).digest(dtype) == weights.digest(state)


@pytest.mark.usefixtures("sglang")
def test_a_server_of_ours_answers_and_ends_with_us(model: Path) -> None:
    config = SglangConfig(dtype="float32", overlap=False, start_timeout_s=60)
    words: list[str] = []

    async def main() -> None:
        async with launch(config, model, "sglang0", version=3, on_end=words.append) as replica:
            tokens = np.arange(3, 23, dtype=np.int32)
            completion = await replica.generate(tokens, Sampling(temperature=0.7, max_tokens=5), Session(id="a"))
            assert completion.versions_T.tolist() == [3] * 5
            _, state = weights.load(model, torch.float32)
            assert (await replica.statistics()).version == Version(number=3, digest=weights.digest(state))

    clock.run(main())
    assert words == []  # it did not end by itself


@pytest.mark.parametrize("python", ["", sys.executable])
def test_an_interpreter_without_sglang_is_refused_with_the_command_that_mends_it(python: str, model: Path) -> None:
    async def main() -> None:
        async with launch(SglangConfig(python=python), model, "sglang0"):
            raise AssertionError("it started")

    mend = rf"{sys.executable} has no sglang: {sys.executable} -m pip install 'sglang>=0.5.23', or .* engine.python"
    with pytest.raises(ConfigError, match=mend):
        clock.run(main())


@pytest.mark.usefixtures("sglang")
def test_a_server_that_does_not_start_says_why(model: Path) -> None:
    config = SglangConfig(extra_args=("--no-such-option",), start_timeout_s=60)

    async def main() -> None:
        async with launch(config, model, "sglang0"):
            raise AssertionError("it started")

    with pytest.raises(EngineError, match="unrecognized arguments: --no-such-option"):
        clock.run(main())
