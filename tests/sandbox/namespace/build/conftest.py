"""One state directory for all builds of a session, so that what they share is made once; and a root file system small
enough to make in a test: a few of the host's own programs and what they are linked to."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sandbox.conftest import Body, OnBackend

PROGRAMS = (
    "bash",
    "cat",
    "chmod",
    "cp",
    "date",
    "id",
    "ls",
    "mkdir",
    "mktemp",
    "rm",
    "setsid",
    "sleep",
    "stat",
    "touch",
)


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture
def on_images(on_backend: OnBackend, state: Path) -> OnBackend:
    """`on_backend` with those images, and without a network."""

    def run(body: Body, **config: Any) -> None:
        on_backend(body, **{"state_dir": state, "egress": "none", **config})

    return run


@pytest.fixture(scope="session")
def tiny_rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory; tests must not change it."""
    root = tmp_path_factory.mktemp("rootfs")
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    files = {Path(found) for name in PROGRAMS if (found := shutil.which(name, path="/usr/bin:/bin"))}
    for program in files:
        shutil.copy2(program.resolve(), root / "usr" / "bin" / program.name)
        for word in subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout.split():
            library = Path(word)
            target = root / word.lstrip("/")
            if library.is_absolute() and library.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(library.resolve(), target)
    (root / "usr" / "bin" / "sh").symlink_to("bash")
    (root / "etc").mkdir()
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\napp:x:1000:1000:app:/home/app:/bin/bash\n")
    (root / "etc" / "group").write_text("root:x:0:\napp:x:1000:\n")
    (root / "etc" / "made-by").write_text("tiny\n")
    return root
