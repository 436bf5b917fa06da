"""The engine's process: how it starts, fails and ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import tiny_llama as tiny
from muster import clock
from muster.engine.config import EmbeddedEngineConfig, ServersConfig
from muster.engine.embedded.launch import launch
from muster.engine.fleet.fleet import Fleet
from muster.engine.servers.restarter import restarting
from muster.errors import EngineError
from muster.model import weights
from muster.publish.config import CheckpointConfig
from muster.publish.transports import exporter_for
from muster.transport.files import SHARED_MEMORY

CONFIG = EmbeddedEngineConfig(dtype="float32", max_streams=2, max_model_len=64, kv_capacity_tokens=512, threads=1)


def serve(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "muster.engine.embedded.serve", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_it_says_when_it_is_ready_and_ends_with_its_standard_input(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model")
    process = serve("--model", str(model), "--dtype", "float32", "--threads", "1", "--version-number", "7")
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert ready["version"] == 7
    assert ready["url"].startswith("http://127.0.0.1:")
    _, errors = process.communicate(timeout=20)  # closes its standard input
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "/nowhere"), "no config.json"),
        (("--model", "/nowhere", "--host", "0.0.0.0"), "MUSTER_ENGINE_TOKEN"),
        (("--model", "/nowhere", "--max-streams", "0"), "max_streams"),
    ],
)
def test_a_users_error_is_one_line_and_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    process = serve(*arguments)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert words in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_a_launch_that_fails_carries_the_process_own_words(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(EngineError, match=r"no config\.json"):
            async with launch(CONFIG, tmp_path, "broken"):
                pass

    clock.run(main())


def test_a_process_that_is_stopped_is_ended_and_another_one_serves(tmp_path: Path) -> None:
    """It is not dead: it takes connections, and never answers."""
    model, name = tiny.write_model(tmp_path / "model"), f"stopped-{os.getpid()}"
    words: list[str] = []

    async def main() -> None:
        config = ServersConfig(wedged_s=0.5, first_delay_s=0.0)
        (replica,) = Fleet([name]).replicas
        async with (
            clock.timeout(60),
            asyncio.TaskGroup() as restarters,
            restarting(
                lambda on_end: launch(CONFIG, model, name, on_end=on_end),
                replica,
                config,
                restarters=restarters,
                say=words.append,
            ),
        ):
            await replica.statistics()
            stopped = process_of(name)
            os.kill(stopped, signal.SIGSTOP)
            while not words:
                with suppress(TimeoutError, EngineError):
                    async with clock.timeout(0.2):
                        await replica.statistics()
                await clock.sleep(0.05)
            while True:
                with suppress(EngineError):
                    await replica.statistics()
                    break
                await clock.sleep(0.05)
            assert process_of(name) != stopped

    clock.run(main())
    assert "how it is (servers.wedged_s = 0.5)" in words[0]
    assert len(words) == 1


def process_of(name: str) -> int:
    """The one that serves under this name."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            said = (entry / "cmdline").read_bytes().split(b"\0")
            if b"muster.engine.embedded.serve" in said and name.encode() in said and b"/bin/sh" not in said:
                return int(entry.name)
    raise AssertionError(f"no process is {name}")


def test_launching_needs_no_torch_in_this_process() -> None:
    script = "import sys, muster.engine.embedded.launch; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_what_it_has_fetched_goes_with_it(tmp_path: Path) -> None:
    model, state = tiny.write_model(tmp_path / "model"), tiny.random_state(1)
    exporter = exporter_for(CheckpointConfig(location=str(tmp_path / "s")), run_label="tidy", directory=tmp_path)
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    publication = exporter.export(arrays, number=1, digest=weights.digest(state), dtype="float32")

    def fetched() -> list[Path]:
        return [path for path in SHARED_MEMORY.iterdir() if "tidying" in path.name]

    async def main() -> None:
        config = CONFIG.model_copy(update={"max_model_len": 128, "kv_capacity_tokens": 1024})
        async with launch(config, model, "tidying") as replica:
            await replica.stage(publication)
            assert fetched()

    clock.run(main())
    assert not fetched()
