from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from muster.lab.workers import workers

TESTS = str(Path(__file__).parent.parent)


def hold(directory: str) -> None:
    """Act as a worker: it has something open, and is not done before the test is."""
    with TemporaryDirectory(dir=directory):
        os.write(1, b"open\n")
        threading.Event().wait(60)


def own(directory: str) -> None:
    with workers(1) as pool:
        pool.submit(hold, directory).result()


def test_work_is_done_in_another_process() -> None:
    with workers(2) as pool:
        assert pool.submit(os.getpid).result() != os.getpid()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_whose_owner_was_killed_closes_what_it_opened_and_ends(tmp_path: Path, number: int) -> None:
    script = f"from lab.test_workers import own; own({str(tmp_path)!r})"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": TESTS},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"open\n"
        assert len(list(tmp_path.iterdir())) == 1
        owner.send_signal(number)
        assert owner.stdout.read() == b""  # the worker holds this pipe as well, until it has ended
    assert list(tmp_path.iterdir()) == []
