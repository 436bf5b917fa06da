"""A service runs in every fork, in the files of that fork, and an interrupt of a command leaves it alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import SandboxStartError
from muster.sandbox.health import FIRST_ASK_S, next_ask_s
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.port import Sandbox, Service, Snapshot
from muster.types import HealthCheck, ImageSpec, Limits
from sandbox.conftest import OnBackend

CHECK = HealthCheck(command="test -f /tmp/up", interval_s=0.2, timeout_s=2, retries=20)
COUNTER = "sleep 0.05; touch /tmp/up; while :; do echo x >> /app/count; sleep 0.02; done"


def service(script: str = COUNTER, check: HealthCheck = CHECK, *, required: bool = True) -> Service:
    return Service(command=("/bin/sh", "-c", script), check=check, required=required)


async def fork(backend: NamespaceBackend, service: Service, snapshot: Snapshot | None = None) -> Sandbox:
    start = snapshot or await backend.prepare(ImageSpec(workdir="/app", env={"GREETING": "hello there"}))
    return await backend.fork(replace(start, service=service), limits=Limits(), label="service")


async def output(sandbox: Sandbox, command: str) -> str:
    return (await sandbox.run(command, timeout_s=5)).output


@given(st.integers(1, 10), st.floats(0.1, 10), st.floats(0, 10), st.floats(0.001, 0.5))
def test_it_is_asked_often_at_first_and_has_the_time_of_all_its_retries(
    retries: int, interval_s: float, start_period_s: float, probe_s: float
) -> None:
    check = HealthCheck(command="", interval_s=interval_s, retries=retries, start_period_s=start_period_s)
    elapsed_s, asked = 0.0, 0
    while (pause_s := next_ask_s(check, asked=asked, elapsed_s=elapsed_s)) is not None:
        assert 0 < pause_s <= max(interval_s, FIRST_ASK_S)
        elapsed_s += pause_s + probe_s
        asked += 1
    patience_s = start_period_s + retries * interval_s
    assert patience_s <= elapsed_s <= patience_s + probe_s + 1e-6
    assert asked >= retries / (1 + probe_s / interval_s)


@pytest.mark.sandbox
def test_a_fork_has_its_service_healthy_and_its_files_to_itself(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        one, two = await fork(backend, service()), await fork(backend, service())
        assert await output(one, "test -f /tmp/up && echo up") == "up\n"
        await one.run("rm /app/count; sleep 0.1; mv /app/count /app/mine", timeout_s=5)
        assert await output(two, "ls /app") == "count\n"

    on_backend(body)


@pytest.mark.sandbox
def test_it_has_the_environment_of_the_image_and_none_of_our_descriptors(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        script = "echo $GREETING > note; pwd >> note; ls /proc/self/fd >> note; touch /tmp/up; sleep 1000"
        sandbox = await fork(backend, service(script))
        assert await output(sandbox, "cat /app/note") == "hello there\n/app\n0\n1\n2\n3\n"  # 3: of `ls` itself

    on_backend(body)


@pytest.mark.sandbox
def test_an_interrupt_and_the_end_of_a_shell_spare_it(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fork(backend, service())
        assert (await sandbox.run("trap '' INT; sleep 100", timeout_s=0.3)).timed_out
        assert (await sandbox.run("exit", timeout_s=5)).shell_restarted
        assert await output(sandbox, "rm count; sleep 0.2; ls") == "count\n"

    on_backend(body)


@pytest.mark.sandbox
def test_it_runs_again_after_a_snapshot_and_in_the_forks_of_that(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fork(backend, service())
        await sandbox.run("echo kept > file", timeout_s=5)
        snapshot = await sandbox.snapshot()
        other = await backend.fork(snapshot, limits=Limits(), label="again")
        for each in (sandbox, other):
            assert await output(each, "cat file; rm count; sleep 0.2; ls count") == "kept\ncount\n"

    on_backend(body)


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("script", "exit_code"), [("echo complaint; echo more >&2; exit 7", 7), ("echo complaint; sleep 1000", None)]
)
def test_a_required_one_that_is_not_healthy_fails_the_fork_with_its_words(
    on_backend: OnBackend, script: str, exit_code: int | None
) -> None:
    async def body(backend: NamespaceBackend) -> None:
        check = replace(CHECK, command="echo asked; false", retries=2)
        with pytest.raises(SandboxStartError, match="service is not healthy") as caught:
            await fork(backend, service(script, check))
        evidence = caught.value.evidence
        assert evidence["service_output"].startswith("complaint\n")
        assert evidence["check_output"] == "asked\n"
        assert evidence["service_exit"] == exit_code
        assert backend.live == 0
        sandbox = await fork(backend, service(script, check, required=False))
        assert await output(sandbox, "echo works") == "works\n"

    on_backend(body)


@pytest.mark.sandbox
def test_a_check_that_hangs_is_bounded(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        check = replace(CHECK, command="test -f /tmp/again || { touch /tmp/again; sleep 100; }", timeout_s=0.2)
        sandbox = await fork(backend, service(check=check))
        assert await output(sandbox, "pgrep -fc 'sleep 100$'; true") == "0\n"

    on_backend(body)


@pytest.mark.sandbox
def test_a_daemon_that_goes_to_the_background_may_be_healthy(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fork(backend, service(f"({COUNTER}) & exit 0"))
        assert await output(sandbox, "rm count; sleep 0.2; ls count") == "count\n"

    on_backend(body)


@pytest.mark.sandbox
def test_a_web_server_answers_later_commands(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        server = Service(
            command=("python3", "-m", "http.server", "8000", "--directory", "/app"),
            check=replace(CHECK, command="bash -c ': < /dev/tcp/127.0.0.1/8000'"),
        )
        sandbox = await fork(backend, server)
        await sandbox.write("/app/page", b"content")
        get = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:{}/page\").read())'"
        assert await output(sandbox, get.format(8000)) == "b'content'\n"
        started = await sandbox.run("python3 -m http.server 8001 & echo started", timeout_s=5)
        assert started.output == "started\n"
        await sandbox.run("until (: < /dev/tcp/127.0.0.1/8001) 2>/dev/null; do sleep 0.05; done", timeout_s=5)
        assert (await output(sandbox, get.format(8001))).endswith("b'content'\n")

    on_backend(body)
