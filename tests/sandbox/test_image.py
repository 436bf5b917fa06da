"""Images built from Dockerfiles, on the real backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.errors import ImageError, TaskError
from muster.sandbox.namespace import NamespaceBackend
from muster.sandbox.port import Snapshot
from muster.types import ImageSpec, Limits
from sandbox.conftest import OnBackend

pytestmark = pytest.mark.sandbox


def spec(context: Path, dockerfile: str) -> ImageSpec:
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(dockerfile)
    return ImageSpec(dockerfile=context / "Dockerfile", context=context)


async def output(backend: NamespaceBackend, image: Snapshot, command: str) -> str:
    sandbox = await backend.fork(image, limits=Limits(), label="look")
    result = await sandbox.run(command, timeout_s=5)
    await sandbox.close()
    return result.output


def test_files_environment_and_directory_are_as_the_dockerfile_says(on_backend: OnBackend, tmp_path: Path) -> None:
    context = tmp_path / "context"
    image = spec(context, "FROM x\nENV A=1\nWORKDIR /app\nCOPY data .\nCOPY run.sh /bin/run-it\nCOPY run.sh /tmp/\n")
    (context / "data" / "deep").mkdir(parents=True)
    (context / "data" / "deep" / "file").write_text("content\n")
    (context / "data" / "link").symlink_to("deep/file")
    (context / "run.sh").write_text("#!/bin/sh\necho ran $A\n")
    (context / "run.sh").chmod(0o755)

    async def body(backend: NamespaceBackend) -> None:
        snapshot = await backend.prepare(image)
        found = await output(backend, snapshot, "pwd; cat link; run-it; ls; stat -c %a /tmp /root /bin/run-it")
        assert found == "/app\ncontent\nran 1\ndeep\nlink\n1777\n700\n755\n"
        # the host's own links and tools are still there
        assert await output(backend, snapshot, "readlink /bin; command -v ls") == "usr/bin\n/usr/bin/ls\n"

    on_backend(body)


def test_run_changes_files_also_in_usr(on_backend: OnBackend, tmp_path: Path) -> None:
    image = spec(
        tmp_path / "context",
        "FROM x\nARG N=2\nWORKDIR /app\n"
        "RUN echo $N > built; echo 'echo tool' > /usr/local/bin/tool; chmod +x /usr/local/bin/tool\n"
        "RUN cat built built > twice && rm built\n",
    )

    async def body(backend: NamespaceBackend) -> None:
        snapshot = await backend.prepare(image)
        assert await output(backend, snapshot, "ls; cat twice; tool") == "twice\n2\n2\ntool\n"

    on_backend(body)


def test_the_same_content_is_the_same_layer_in_another_backend(on_backend: OnBackend, tmp_path: Path) -> None:
    context = tmp_path / "context"
    image = spec(context, "FROM x\nWORKDIR /app\nCOPY in .\nRUN date +%N > built\n")
    (context / "in").write_text("1")
    snapshots: list[Snapshot] = []

    async def body(backend: NamespaceBackend) -> None:
        snapshots.append(await backend.prepare(image))

    on_backend(body)
    on_backend(body)
    assert snapshots[0] == snapshots[1]
    (context / "in").write_text("2")
    on_backend(body)
    assert snapshots[2].layers[-1] != snapshots[0].layers[-1]


def test_a_failing_run_is_an_image_error_with_its_log_and_leaves_no_layer(
    on_backend: OnBackend, tmp_path: Path
) -> None:
    image = spec(tmp_path / "context", "FROM x\nRUN echo because; exit 3\n")

    async def body(backend: NamespaceBackend) -> None:
        with pytest.raises(ImageError, match="Dockerfile:2: RUN echo because; exit 3: exit code 3\nbecause"):
            await backend.prepare(image)
        assert len(list((tmp_path / "state" / "images").iterdir())) == 1  # the base

    on_backend(body)


def test_a_build_that_takes_too_long_is_an_image_error(on_backend: OnBackend, tmp_path: Path) -> None:
    image = spec(tmp_path / "context", "FROM x\nRUN sleep 60\n")
    slow = ImageSpec(dockerfile=image.dockerfile, context=image.context, build_timeout_s=0.3)

    async def body(backend: NamespaceBackend) -> None:
        with pytest.raises(ImageError):
            await backend.prepare(slow)

    on_backend(body)


@pytest.mark.parametrize("source", ["../secret", "link", "/../secret", "missing"])
def test_copy_takes_nothing_from_outside_of_the_context(on_backend: OnBackend, tmp_path: Path, source: str) -> None:
    context = tmp_path / "context"
    image = spec(context, f"FROM x\nCOPY {source} /app/\n")
    (tmp_path / "secret").write_text("secret")
    (context / "link").symlink_to(tmp_path / "secret")

    async def body(backend: NamespaceBackend) -> None:
        with pytest.raises(TaskError, match="Dockerfile:2: COPY"):
            await backend.prepare(image)

    on_backend(body)
