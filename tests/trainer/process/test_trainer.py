from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from app.publications import in_memory
from muster import clock
from muster.errors import ModelError, TrainerError
from muster.trainer.config import TrainerConfig
from muster.trainer.process.trainer import ProcessTrainer
from trainer.tiny import random_batch

CONFIG = TrainerConfig(dtype="float32", threads=1)
TOKENS = [np.arange(5, dtype=np.int32)]


def trainer_for(model: Path | str, directory: Path) -> ProcessTrainer:
    return ProcessTrainer(CONFIG, model=str(model), temperature=0.8, exporter=in_memory(directory))


def workers() -> list[int]:
    """Worker processes that are children of this one."""
    listed = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=True
    )
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if "muster.trainer.process.worker" in line]


def test_the_parent_side_imports_no_torch():
    code = "import sys, muster.trainer.process.trainer, muster.publish.transports; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_killed_trainer_fails_the_pending_call_at_once_and_every_later_one(model, tmp_path):
    async def body() -> None:
        async with trainer_for(model, tmp_path) as trainer:
            await trainer.start()
            (pid,) = workers()
            os.kill(pid, signal.SIGSTOP)  # so that the call is pending when it dies
            call = asyncio.create_task(trainer.step(random_batch(0)))
            await asyncio.sleep(0)
            os.kill(pid, signal.SIGKILL)
            async with clock.timeout(5):
                with pytest.raises(TrainerError, match="ended with code -9"):
                    await call
                with pytest.raises(TrainerError, match="ended with code -9"):
                    await trainer.export(1)
        assert workers() == []

    clock.run(body())


def test_what_it_wrote_last_is_in_the_error(model, tmp_path):
    async def body() -> None:
        async with trainer_for(model, tmp_path) as trainer:
            with pytest.raises(TrainerError, match="AttributeError") as caught:
                await trainer.step("not a batch")  # pyright: ignore[reportArgumentType]
            assert "Traceback" in caught.value.evidence["stderr"]

    clock.run(body())


def test_a_missing_model_is_the_users_error_on_every_call(tmp_path):
    async def body() -> None:
        async with trainer_for(tmp_path / "nowhere", tmp_path) as trainer:
            for _ in range(2):
                with pytest.raises(ModelError, match="nowhere"):
                    await trainer.score(TOKENS, temperature=0.8)
        assert workers() == []

    clock.run(body())


def test_closing_before_the_first_call_starts_nothing(model, tmp_path):
    async def body() -> None:
        trainer = trainer_for(model, tmp_path)
        await trainer.close()
        with pytest.raises(TrainerError, match="closed"):
            await trainer.export(1)
        assert workers() == []

    clock.run(body())


def test_a_killed_parent_leaves_no_process(model, tmp_path):
    code = f"""
        import asyncio, os
        from pathlib import Path
        from muster.publish.config import MemoryConfig
        from muster.publish.transports import exporter_for
        from muster.trainer.config import TrainerConfig
        from muster.trainer.process.trainer import ProcessTrainer

        async def main():
            exporter = exporter_for(MemoryConfig(), run_label="killed", directory=Path({str(tmp_path)!r}))
            trainer = ProcessTrainer(TrainerConfig(threads=1), model={str(model)!r}, temperature=1.0, exporter=exporter)
            await trainer.start()
            print(trainer._link.result()._process.pid, flush=True)
            await asyncio.sleep(60)

        asyncio.run(main())
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        handle = os.pidfd_open(child)
        parent.kill()

        async def gone() -> None:
            ended = asyncio.Event()
            asyncio.get_running_loop().add_reader(handle, ended.set)
            async with clock.timeout(5):
                await ended.wait()

        clock.run(gone())
        os.close(handle)
