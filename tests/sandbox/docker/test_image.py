"""Images at a daemon: built once, with their settings and their services."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import daemons
from muster.errors import ImageError, SandboxStartError
from muster.sandbox.docker.backend import DockerBackend
from muster.sandbox.port import Service
from muster.types import HealthCheck, ImageSpec, Limits
from sandbox.docker.docker_world import OnDaemon

pytestmark = pytest.mark.sandbox


def dockerfile(directory: Path, text: str) -> ImageSpec:
    directory.mkdir(exist_ok=True)
    (directory / "Dockerfile").write_text(text, encoding="utf-8")
    return ImageSpec(dockerfile=directory / "Dockerfile", context=directory)


def test_a_dockerfile_is_built_once_and_its_settings_are_in_force(on_each: OnDaemon, tmp_path: Path) -> None:
    image = dockerfile(
        tmp_path,
        f"FROM {daemons.BASE}\nARG NAME=none\nENV KEY=value\nWORKDIR /srv/work\nCOPY file .\n"
        "RUN echo $NAME $RANDOM$RANDOM >/token\nUSER www-data\n",
    )
    (tmp_path / "file").write_text("copied\n", encoding="utf-8")

    async def body(backend: DockerBackend) -> None:
        first = await backend.prepare(replace(image, build_args={"NAME": "given"}))
        assert await backend.prepare(replace(image, build_args={"NAME": "given"})) == first
        assert (await backend.prepare(image)).id != first.id
        sandbox = await backend.fork(first, limits=Limits(), label="built")
        said = await sandbox.run("pwd; cat file; echo $KEY $USER $HOME; id -un; cat /token", timeout_s=5)
        assert said.output.startswith("/srv/work\ncopied\nvalue www-data /var/www\nwww-data\ngiven ")

    on_each(body)


def test_an_image_that_cannot_be_made_says_why(on_docker: OnDaemon, tmp_path: Path) -> None:
    failing = dockerfile(tmp_path / "a", f"FROM {daemons.BASE}\nRUN echo some words && exit 7\n")
    absent = dockerfile(tmp_path / "b", "FROM nobody/has-this:1\n")

    async def body(backend: DockerBackend) -> None:
        with pytest.raises(ImageError, match="returned a non-zero code: 7") as failed:
            await backend.prepare(failing)
        assert "some words" in failed.value.evidence["log"]
        for spec in (absent, ImageSpec(docker_image="nobody/has-this:1")):
            with pytest.raises(ImageError, match=r"nobody/has-this:1: .*sandbox\.egress = none forbids"):
                await backend.prepare(spec)

    on_docker(body)


SERVER = "date +%N >/started; while sleep 0.05; do echo alive >/beat; done"


def test_a_service_runs_in_every_fork_and_after_a_snapshot(on_each: OnDaemon, tmp_path: Path) -> None:
    image = dockerfile(
        tmp_path, f'FROM {daemons.BASE}\nCMD ["/bin/bash", "-c", "{SERVER}"]\nHEALTHCHECK CMD test -e /beat\n'
    )

    async def body(backend: DockerBackend) -> None:
        snapshot = await backend.prepare(image)
        assert snapshot.service is not None
        assert await backend.prepare(image) == snapshot
        sandbox = await backend.fork(snapshot, limits=Limits(), label="served")
        beats = "cat /beat; rm /beat; until [ -e /beat ]; do sleep 0.01; done"
        assert (await sandbox.run(beats, timeout_s=5)).exit_code == 0
        assert (await sandbox.run("sleep 100", timeout_s=0.1)).timed_out
        frozen = await sandbox.snapshot()
        for again in (sandbox, await backend.fork(frozen, limits=Limits(), label="again")):
            assert (await again.run(beats, timeout_s=5)).exit_code == 0

    on_each(body)


def test_a_service_that_never_works_fails_the_start_with_its_own_words(on_docker: OnDaemon) -> None:
    async def body(backend: DockerBackend) -> None:
        image = await backend.prepare(ImageSpec())
        check = HealthCheck(command="false", interval_s=0.05, retries=2)
        broken = Service(command=("/bin/sh", "-c", "echo no such database; exit 4"), check=check)
        with pytest.raises(SandboxStartError) as failed:
            await backend.fork(replace(image, service=broken), limits=Limits(), label="x")
        assert "no such database" in failed.value.evidence["service_output"]
        optional = replace(image, service=replace(broken, required=False))
        sandbox = await backend.fork(optional, limits=Limits(), label="y")
        assert (await sandbox.run("echo fine", timeout_s=5)).output == "fine\n"

    on_docker(body)
