"""Sandboxes of somebody who is not root. A suite that runs as root runs these again as nobody, in another process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.sandbox.cgroup import Cgroups
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.types import ImageSpec, Limits
from sandbox.conftest import OnBackend

NOBODY = 65534
TESTS = Path(__file__).parents[2]
CONTRACT = "gives_its_output or time_out_is or ends_its_shell or never_changes or mounts_are"
EGRESS = "reaches_what_its_task_lists"
ordinary = pytest.mark.skipif(os.geteuid() == 0, reason="runs as nobody, in the test that says so")


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of nobody's own. Not below pytest's, which root alone may enter."""
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, NOBODY, NOBODY)
        yield Path(name)


def run_as_nobody(python: str, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    paths = [path for path in sys.path if path and not path.startswith(sys.base_prefix)]
    env = {"PATH": os.defpath, "HOME": str(home), "PYTHONPATH": os.pathsep.join([str(TESTS), *paths])}
    line = [python, *arguments]
    return subprocess.run(
        line, env=env, cwd=home, user=NOBODY, group=NOBODY, extra_groups=(), capture_output=True, text=True, timeout=120
    )


def python_of_nobody(home: Path) -> str | None:
    """An interpreter of this version that nobody may run, and with which it may import us."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, shutil.which(version, path=os.defpath)):
        try:
            if candidate and run_as_nobody(candidate, "-c", "import muster.types, pytest", home=home).returncode == 0:
                return candidate
        except PermissionError:
            pass
    return None


@pytest.mark.sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite runs as an ordinary user already")
def test_the_contract_holds_for_an_ordinary_user(home: Path) -> None:
    python = python_of_nobody(home)
    if python is None:
        pytest.skip("nobody may run no interpreter of this version, or may not read this checkout")
    files = ("contract/test_sandbox.py", "sandbox/egress/test_door.py", "sandbox/namespace/test_ordinary_user.py")
    answer = run_as_nobody(
        python,
        *("-m", "pytest", "-n0", "-rA", "-p", "no:cacheprovider", f"--rootdir={TESTS.parent}"),
        *("-c", str(TESTS.parent / "pyproject.toml"), f"--basetemp={home / 'pytest'}"),
        *("-k", f"(namespace and ({CONTRACT})) or {EGRESS} or ordinary"),
        *(str(TESTS / file) for file in files),
        home=home,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    passed = [line for line in answer.stdout.splitlines() if line.startswith("PASSED")]
    assert len(passed) >= 8, answer.stdout


@ordinary
@pytest.mark.sandbox
def test_processes_of_an_ordinary_users_sandbox_are_limited_without_a_cgroup(on_backend: OnBackend) -> None:
    if "pids" in Cgroups.detect().hierarchies:
        pytest.skip("a cgroup is delegated to us")

    async def body(backend: NamespaceBackend) -> None:
        image = await backend.prepare(ImageSpec())
        one, two = [await backend.fork(image, limits=Limits(pids=32), label="bomb") for _ in range(2)]
        bomb = await one.run("for n in {1..100}; do sleep 60 & done", timeout_s=5)
        assert "Resource temporarily unavailable" in bomb.output
        # each sandbox counts for itself
        assert (await two.run("for n in {1..10}; do sleep 60 & done; jobs -r | wc -l", timeout_s=5)).exit_code == 0

    on_backend(body)


@pytest.mark.sandbox
def test_a_sandbox_goes_first_when_memory_is_short(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await backend.fork(await backend.prepare(ImageSpec()), limits=Limits(), label="first")
        assert (await sandbox.run("cat /proc/self/oom_score_adj", timeout_s=5)).output == "1000\n"

    on_backend(body)
