"""Shells and services run as the image's user; the port's own reads and writes are root's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

import pytest

from muster.errors import SandboxStartError
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.port import Sandbox, Service
from muster.types import HealthCheck, ImageSpec, Limits
from sandbox.conftest import OnBackend

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has one user number to give"),
]
WHO = "id -u; id -G; echo $USER $HOME; pwd"


async def fork(
    backend: NamespaceBackend, user: str, *, env: Mapping[str, str] | None = None, service: Service | None = None
) -> Sandbox:
    start = await backend.prepare(ImageSpec(workdir="/app"))
    snapshot = replace(start, user=user, env=env or {}, service=service)
    return await backend.fork(snapshot, limits=Limits(), label="user")


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("www-data", "33\n33\nwww-data /var/www\n/app\n"),
        ("33", "33\n33\nwww-data /var/www\n/app\n"),
        ("www-data:staff", "33\n50\nwww-data /var/www\n/app\n"),
        ("1234:5678", "1234\n5678\n1234 /\n/app\n"),
        ("root", "0\n0\nroot /root\n/app\n"),
    ],
)
def test_every_session_runs_as_the_user_of_the_image(on_backend: OnBackend, user: str, expected: str) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fork(backend, user)
        for session in ("main", "other"):
            assert (await sandbox.run(WHO, timeout_s=5, session=session)).output == expected
        await sandbox.run("exit", timeout_s=5)
        again = await backend.fork(await sandbox.snapshot(), limits=Limits(), label="again")
        for each in (sandbox, again):
            assert (await each.run(WHO, timeout_s=5)).output == expected

    on_backend(body)


def test_such_a_user_cannot_write_what_is_roots_and_the_port_can(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fork(backend, "www-data")
        assert (await sandbox.run("echo x > /app/file", timeout_s=5)).exit_code == 1
        assert (await sandbox.run("kill -9 1 || ls /proc/1/fd", timeout_s=5)).exit_code != 0
        await sandbox.write("/app/file", b"content")
        assert (await sandbox.run("cat /app/file", timeout_s=5)).output == "content"

    on_backend(body)


def test_such_a_user_has_a_terminal_and_open_output(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fork(backend, "www-data")
        result = await sandbox.run("echo one > /dev/stdout; echo two > /dev/stderr; stat -c %U /dev/pts/0", timeout_s=5)
        assert result.output == "one\ntwo\nwww-data\n"
        assert (await sandbox.run("echo three > /dev/tty; echo x > /dev/pts/0", timeout_s=5)).exit_code == 0
        assert (await sandbox.run("trap '' INT; sleep 100", timeout_s=0.3)).timed_out
        assert (await sandbox.run("echo still here", timeout_s=5)).output == "still here\n"

    on_backend(body)


def test_what_the_images_environment_says_of_home_stays(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fork(backend, "www-data", env={"HOME": "/srv/home of it"})
        assert (await sandbox.run("echo $HOME $USER", timeout_s=5)).output == "/srv/home of it www-data\n"

    on_backend(body)


def test_an_image_without_setpriv_is_served_by_chroot(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        maker = await fork(backend, "")
        tools = "mkdir bin; ln -s /usr/bin/setsid /usr/sbin/chroot /usr/bin/id bin"
        await maker.run(tools, timeout_s=5)
        snapshot = replace(await maker.snapshot(), user="www-data:staff", env={"PATH": "/app/bin"}, shell_state="")
        sandbox = await backend.fork(snapshot, limits=Limits(), label="bare")
        assert (await sandbox.run(WHO, timeout_s=5)).output == "33\n50\nwww-data /var/www\n/app\n"

    on_backend(body)


def test_a_service_has_a_user_of_its_own(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        check = HealthCheck(command="test -f /tmp/up", interval_s=0.2)
        command = ("/bin/sh", "-c", "id -un > /tmp/who; echo $HOME >> /tmp/who; touch /tmp/up; sleep 1000")
        sandbox = await fork(backend, "nobody", service=Service(command=command, check=check, user="www-data"))
        assert await sandbox.read("/tmp/who") == b"www-data\n/var/www\n"

    on_backend(body)


def test_an_unknown_user_fails_the_start_by_name(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        with pytest.raises(SandboxStartError, match="no user 'ghost'"):
            await fork(backend, "ghost")
        assert backend.live == 0

    on_backend(body)
