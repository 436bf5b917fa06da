"""The emulated engine behind HTTP: where it listens, and the command."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from lab.emulated.books import config
from muster import clock
from muster.engine.timing import EngineTiming
from muster.errors import UserError
from muster.lab.emulated.engine import EmulatedEngine
from muster.lab.emulated.presets import to_toml
from muster.lab.emulated.serve import emulate, serving
from muster.lab.faults import INITIAL

FAST = config(
    timing=EngineTiming(step_s=1e-4, prefill_s=1e-6), vocabulary=1000, max_model_len=2048, max_step_tokens=2048
)


def test_it_listens_beyond_loopback_only_with_a_token_and_says_when_a_port_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MUSTER_ENGINE_TOKEN", raising=False)
    with pytest.raises(UserError, match="MUSTER_ENGINE_TOKEN"):
        emulate(FAST, name="r", host="0.0.0.0", port=0, say=print)

    async def main() -> None:
        first, second = (EmulatedEngine(FAST, name=name, version=INITIAL) for name in ("first", "second"))
        async with serving(first) as url:
            with pytest.raises(UserError, match="choose another --port"):
                async with serving(second, port=int(url.rsplit(":", 1)[1])):
                    pass

    clock.run(main())


def test_the_command_serves_until_it_is_terminated_and_can_be_calibrated(tmp_path: Path) -> None:
    preset = tmp_path / "small.toml"
    timing = EngineTiming(step_s=0.01, row_s=4e-4, prefill_s=6e-4)  # slow beside the delays of a busy machine
    preset.write_text(to_toml(FAST.model_copy(update={"max_running": 8, "timing": timing})))

    async def command(*words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "import muster.app.cli; muster.app.cli.main()",
            "engine",
            *words,
            stdout=PIPE,
            env=os.environ,
        )

    async def main() -> None:
        server = await command("emulate", "--preset", str(preset), "--port", "0")
        assert server.stdout is not None
        try:
            async with clock.timeout(20):
                url = (await server.stdout.readline()).decode().split()[-1]
            client = await command("calibrate", url, "--longest", "512", "--repeats", "1")
            async with clock.timeout(60):
                said = (await client.communicate())[0].decode()
            assert client.returncode == 0
            assert "[timing]" in said
            assert "max_running = 8" in said
        finally:
            server.send_signal(signal.SIGTERM)
            code = await server.wait()
        assert code == 0

    clock.run(main())
