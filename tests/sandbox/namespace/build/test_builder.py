"""Images built on the real backend. Most lie over the host's own /usr; some over a root file system of their own."""

from __future__ import annotations

import asyncio
import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.errors import ImageError, TaskError
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.port import Service, Snapshot
from muster.types import HealthCheck, ImageSpec, Limits
from sandbox.conftest import OnBackend

pytestmark = pytest.mark.sandbox
TOKEN = "RUN cat /proc/sys/kernel/random/uuid > /token\n"


def spec(context: Path, dockerfile: str, **options: Any) -> ImageSpec:
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(dockerfile)
    return ImageSpec(dockerfile=context / "Dockerfile", context=context, **options)


async def output(backend: NamespaceBackend, image: Snapshot, command: str) -> str:
    sandbox = await backend.fork(image, limits=Limits(), label="look")
    result = await sandbox.run(command, timeout_s=5)
    await sandbox.close()
    return result.output


async def look(backend: NamespaceBackend, image: ImageSpec, command: str) -> str:
    return await output(backend, await backend.prepare(image), command)


def test_files_environment_and_directory_are_as_the_dockerfile_says(on_images: OnBackend, tmp_path: Path) -> None:
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

    on_images(body)


def test_run_changes_files_also_in_usr(on_images: OnBackend, tmp_path: Path) -> None:
    image = spec(
        tmp_path / "context",
        "FROM x\nARG N=2\nWORKDIR /app\n"
        "RUN echo $N > built; echo 'echo tool' > /usr/local/bin/tool; chmod +x /usr/local/bin/tool\n"
        'RUN ["/bin/bash", "-c", "cat built built > twice && rm built"]\n'
        "RUN <<EOF\necho document > /app/document\nEOF\n"
        "RUN <<EOF\n#!/bin/bash\nset -- a b; echo $# > /app/program\nEOF\n",
    )

    async def body(backend: NamespaceBackend) -> None:
        found = await look(backend, image, "ls; cat twice document program; tool")
        assert found == "document\nprogram\ntwice\n2\n2\ndocument\n2\ntool\n"

    on_images(body)


def test_nothing_that_a_build_borrows_stays_in_the_image(on_images: OnBackend, tmp_path: Path) -> None:
    image = spec(tmp_path / "context", "FROM x\nRUN ls /run/muster > /lent; env > /seen\n")

    async def body(backend: NamespaceBackend) -> None:
        found = await look(backend, image, "cat /lent; grep -c APT_CONFIG /seen; ls /run /etc/ssl; env | grep -c APT")
        assert "apt.conf\n" in found
        assert found.endswith("1\nls: cannot access '/etc/ssl': No such file or directory\n/run:\n0\n")

    on_images(body)


def test_the_same_content_is_built_once(on_images: OnBackend, tmp_path: Path) -> None:
    context = tmp_path / "context"
    image = spec(context, f"FROM x\nWORKDIR /app\nCOPY in .\n{TOKEN}")
    (context / "in").write_text("1")
    snapshots: list[Snapshot] = []
    tokens: list[str] = []

    async def body(backend: NamespaceBackend) -> None:
        snapshots.append(await backend.prepare(image))
        tokens.append(await output(backend, snapshots[-1], "cat /token"))

    on_images(body)
    on_images(body)  # another backend, as in another process
    assert snapshots[0] == snapshots[1]
    assert tokens[0] == tokens[1]
    (context / "in").write_text("2")
    on_images(body)
    assert snapshots[2].layers[-1] != snapshots[0].layers[-1]
    assert tokens[2] != tokens[0]


def test_tasks_that_need_the_same_layer_at_once_wait_for_one_build(on_images: OnBackend, tmp_path: Path) -> None:
    images = [spec(tmp_path / name, f"FROM x\n{TOKEN}RUN echo {name} > /name\n") for name in "abc"]

    async def body(backend: NamespaceBackend) -> None:
        snapshots = await asyncio.gather(*(backend.prepare(image) for image in images))
        found = [await output(backend, snapshot, "cat /name /token") for snapshot in snapshots]
        assert [text[0] for text in found] == ["a", "b", "c"]
        assert len({text[1:] for text in found}) == 1

    on_images(body)


def test_stages_pass_on_files_and_what_is_not_needed_is_not_built(on_images: OnBackend, tmp_path: Path) -> None:
    context = tmp_path / "context"
    image = spec(
        context,
        "ARG WHAT=made\nFROM x AS build\nARG WHAT\nENV KEPT=yes\nRUN mkdir -p /out/deep && echo $WHAT > /out/deep/f\n"
        "FROM x AS unneeded\nRUN exit 1\n"
        "FROM build AS extended\nRUN echo more > /out/g\n"
        "FROM x\nCOPY --from=build /out /a\nCOPY --from=2 /out/g /b/\nCOPY --from=build /usr/bin/env /c/\n"
        "RUN --mount=from=build,source=/out/deep,target=/mnt cat /mnt/f > /d && ! touch /mnt/x\n",
    )

    async def body(backend: NamespaceBackend) -> None:
        found = await look(backend, image, "cat /a/deep/f /b/g /d; ls /c /mnt; echo $KEPT")
        assert found == "made\nmore\nmade\n/c:\nenv\n\n/mnt:\n\n"
        early = replace(image, target="build", build_args={"WHAT": "other"})
        assert await look(backend, early, "cat /out/deep/f; echo $KEPT; ls /a 2>&1 | wc -l") == "other\nyes\n1\n"

    on_images(body)


def test_what_a_run_removed_or_made_anew_is_so_for_later_stages_too(on_images: OnBackend, tmp_path: Path) -> None:
    image = spec(
        tmp_path / "context",
        "FROM x AS a\nRUN mkdir /d /e && touch /d/old /e/old /e/kept\nRUN rm -r /d /e/old && mkdir /d && touch /d/new\n"
        "FROM x\nCOPY --from=a /d /copied/d\nCOPY --from=a /e /copied/e\n",
    )

    async def body(backend: NamespaceBackend) -> None:
        assert await look(backend, replace(image, target="a"), "ls /d /e") == "/d:\nnew\n\n/e:\nkept\n"
        assert await look(backend, image, "cd /copied; ls d e") == "d:\nnew\n\ne:\nkept\n"

    on_images(body)


def test_mounts_of_run_leave_nothing_and_caches_stay(on_images: OnBackend, tmp_path: Path) -> None:
    context = tmp_path / "context"
    image = spec(
        context,
        "FROM x\nRUN --mount=type=cache,target=/cache --mount=type=tmpfs,target=/t --mount=target=/src,source=in,rw "
        "cat /src/f >> /cache/log && touch /t/x /src/x && cp /cache/log /log1\n"
        "RUN --mount=type=cache,target=/cache echo again >> /cache/log && cp /cache/log /log2\n",
    )
    (context / "in").mkdir()
    (context / "in" / "f").write_text("from the context\n")

    async def body(backend: NamespaceBackend) -> None:
        found = await look(backend, image, "cat /log1; tail -n 1 /log2; ls /cache /t /src")
        assert found == "from the context\nagain\n/cache:\n\n/src:\n\n/t:\n"

    on_images(body)


@pytest.mark.skipif("os.geteuid() != 0", reason="an ordinary user has no other users")
def test_later_commands_run_as_the_user(on_images: OnBackend, tmp_path: Path) -> None:
    context = tmp_path / "context"
    image = spec(
        context,
        "FROM x\nRUN echo app:x:1234:1234::/tmp/home:/bin/bash >> /etc/passwd && mkdir -m 777 /tmp/home /job\n"
        "USER app\nRUN id -u > /job/who; echo $HOME > /job/home\nCOPY --chown=app f /job/f\n",
    )
    (context / "f").write_text("")

    async def body(backend: NamespaceBackend) -> None:
        snapshot = await backend.prepare(image)
        assert snapshot.user == "app"
        assert await output(backend, snapshot, "cat /job/*; stat -c %u /job/*; id -u") == (
            "/tmp/home\n1234\n1234\n1234\n1234\n1234\n"
        )
        assert (await backend.prepare(replace(image, user="root"))).user == "root"

    on_images(body)


def test_a_failing_run_is_an_image_error_with_its_log_and_leaves_no_layer(
    on_images: OnBackend, tmp_path: Path, state: Path
) -> None:
    image = spec(tmp_path / "context", "FROM x\nRUN echo first\nRUN seq 5000; echo because; exit 3\n")

    async def body(backend: NamespaceBackend) -> None:
        await backend.prepare(spec(tmp_path / "first", "FROM x\nRUN echo first\n"))
        before = set((state / "images").iterdir())
        with pytest.raises(ImageError, match=r"Dockerfile:3: RUN seq 5000; .*: exit code 3\n") as caught:
            await backend.prepare(image)
        message = str(caught.value)
        assert "\n5000\nbecause\n" in message
        assert "\n1000\n" not in message
        log = Path(caught.value.evidence["log_file"])
        assert log.is_relative_to(state)
        assert "\n1000\n" in log.read_text()
        assert set((state / "images").iterdir()) == before

    on_images(body)


def test_a_build_that_takes_too_long_is_an_image_error_with_what_it_said(on_images: OnBackend, tmp_path: Path) -> None:
    image = spec(tmp_path / "context", "FROM x\nRUN echo working; sleep 60\n", build_timeout_s=2.0)

    async def body(backend: NamespaceBackend) -> None:
        with pytest.raises(ImageError, match=r"Dockerfile:2: RUN echo working; sleep 60: not done in \d s.*\nworking"):
            await backend.prepare(image)

    on_images(body)


@pytest.mark.parametrize("source", ["../secret", "link", "/../secret", "missing"])
def test_copy_takes_nothing_from_outside_of_the_context(on_images: OnBackend, tmp_path: Path, source: str) -> None:
    context = tmp_path / "context"
    image = spec(context, f"FROM x\nCOPY {source} /app/\n")
    (tmp_path / "secret").write_text("secret")
    (context / "link").symlink_to(tmp_path / "secret")

    async def body(backend: NamespaceBackend) -> None:
        with pytest.raises(TaskError, match="Dockerfile:2: COPY"):
            await backend.prepare(image)

    on_images(body)


def test_a_task_may_set_what_the_dockerfile_left_open(on_images: OnBackend, tmp_path: Path) -> None:
    image = spec(tmp_path / "context", "FROM x\nENV A=1 B=1\n", env={"B": "2"}, workdir="/new/place")

    async def body(backend: NamespaceBackend) -> None:
        assert await look(backend, image, "pwd; echo $A$B") == "/new/place\n12\n"

    on_images(body)


# --- root file systems ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["directory", "tar"])
def test_an_image_over_a_root_file_system_sees_nothing_of_the_host(
    on_images: OnBackend, tmp_path: Path, tiny_rootfs: Path, kind: str
) -> None:
    source = tiny_rootfs
    if kind == "tar":
        source = tmp_path / "root.tar"
        with tarfile.open(source, "w") as tar:
            tar.add(tiny_rootfs, ".")
    image = spec(
        tmp_path / "context",
        "FROM tiny:1\nRUN echo changed > /usr/bin/mine && rm /etc/made-by && mkdir /usr/share\n"
        "COPY Dockerfile /usr/share/\n",
    )

    async def body(backend: NamespaceBackend) -> None:
        snapshot = await backend.prepare(image)
        assert snapshot.layers[0].name.startswith("rootfs-")
        found = await output(
            backend, snapshot, "cat /usr/bin/mine /etc/made-by; ls /usr /usr/share; touch /usr/x; id -u"
        )
        assert found == (
            "changed\ncat: /etc/made-by: No such file or directory\n/usr:\nbin\nshare\n\n/usr/share:\nDockerfile\n0\n"
        )
        plain = await backend.prepare(ImageSpec(docker_image="tiny:2"))
        assert await output(backend, plain, "cat /etc/made-by; ls /usr/bin/python3") == (
            "tiny\nls: cannot access '/usr/bin/python3': No such file or directory\n"
        )

    on_images(body, images={"tiny:*": str(source)})


def test_the_layers_of_a_saved_image_hide_what_they_removed(
    on_images: OnBackend, tmp_path: Path, tiny_rootfs: Path
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "below").touch()
    (tmp_path / "empty").touch()
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        tar.add(tiny_rootfs, ".")
        tar.add(tmp_path / "d", "d")
    with tarfile.open(tmp_path / "1.tar", "w") as tar:
        for name in ("etc/.wh.made-by", "d/.wh..wh..opq", "d/above"):
            tar.add(tmp_path / "empty", name)
    (tmp_path / "config.json").write_text(json.dumps({"config": {"Env": ["A=saved"], "WorkingDir": "/d", "User": ""}}))
    (tmp_path / "manifest.json").write_text(json.dumps([{"Config": "config.json", "Layers": ["0.tar", "1.tar"]}]))
    with tarfile.open(tmp_path / "saved.tar", "w") as tar:
        for name in ("0.tar", "1.tar", "config.json", "manifest.json"):
            tar.add(tmp_path / name, name)
    built = spec(tmp_path / "context", "FROM saved\nRUN echo $A > built && ls > listed\n")

    async def body(backend: NamespaceBackend) -> None:
        assert await look(backend, ImageSpec(docker_image="saved"), "pwd; ls; ls /etc/made-by 2>&1 | cat; echo $A") == (
            "/d\nabove\nls: cannot access '/etc/made-by': No such file or directory\nsaved\n"
        )
        assert await look(backend, built, "cat built listed") == "saved\nabove\nbuilt\nlisted\n"

    on_images(body, images={"saved": str(tmp_path / "saved.tar")})


def test_scratch_takes_what_other_stages_give(on_images: OnBackend, tmp_path: Path, tiny_rootfs: Path) -> None:
    image = spec(
        tmp_path / "context", f"FROM tiny AS t\n{TOKEN}FROM scratch\nCOPY --from=t / /\nRUN ls /token > /found\n"
    )

    async def body(backend: NamespaceBackend) -> None:
        assert await look(backend, image, "cat /found") == "/token\n"
        empty = spec(tmp_path / "empty", "FROM scratch\nCOPY Dockerfile /\n")
        with pytest.raises(TaskError, match="the image has no /bin/bash"):
            await backend.prepare(empty)

    on_images(body, images={"tiny": str(tiny_rootfs)})


# --- services -------------------------------------------------------------------------------------------

HEALTHY = HealthCheck(command="test -e /run/ready", interval_s=0.1, retries=50)


def test_a_service_is_started_once_and_what_that_leaves_is_a_layer(on_images: OnBackend, tmp_path: Path) -> None:
    start = "test -e /first || cat /proc/sys/kernel/random/uuid > /first; touch /run/ready; exec sleep infinity"
    image = spec(
        tmp_path / "context", f'FROM x\nRUN echo \'{start}\' > /start\nENTRYPOINT ["/bin/sh"]\nCMD ["/start"]\n'
    )
    image = replace(image, health=HEALTHY)

    async def body(backend: NamespaceBackend) -> None:
        snapshot = await backend.prepare(image)
        assert snapshot.service == Service(command=("/bin/sh", "/start"), check=HEALTHY)
        first = await output(backend, snapshot, "cat /first")
        assert len(first) == 37
        assert await output(backend, snapshot, "cat /first") == first
        assert await backend.prepare(image) == snapshot

    on_images(body)


def test_a_service_that_is_not_healthy_is_an_image_error_with_its_output(on_images: OnBackend, tmp_path: Path) -> None:
    image = spec(tmp_path / "context", 'FROM x\nCMD ["/bin/sh", "-c", "echo no database; exit 4"]\n')
    image = replace(image, health=replace(HEALTHY, retries=2))

    async def body(backend: NamespaceBackend) -> None:
        with pytest.raises(ImageError, match="no database"):
            await backend.prepare(image)

    on_images(body)


def test_the_task_says_what_the_service_is(on_images: OnBackend, tmp_path: Path) -> None:
    base = spec(tmp_path / "context", 'FROM x\nENTRYPOINT ["e"]\nCMD ["c"]\nHEALTHCHECK CMD true\n')

    async def command(backend: NamespaceBackend, **options: Any) -> tuple[str, ...]:
        snapshot = await backend.prepare(replace(base, **options))
        assert snapshot.service is not None
        return snapshot.service.command

    async def body(backend: NamespaceBackend) -> None:
        shell = ("/bin/sh", "-c", "sleep infinity")
        assert await command(backend, entrypoint=shell) == shell
        assert await command(backend, entrypoint=("sleep",), command=("9999",)) == ("sleep", "9999")
        assert await command(backend, entrypoint=("bash",)) == ("sleep", "infinity")  # nobody types

    on_images(body)
