"""Contract of every sandbox backend, the fake included."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import daemons
from muster import clock
from muster.errors import SandboxError
from muster.lab.fakes.sandbox import FakeBackend, FakeDisk
from muster.sandbox.config import SandboxConfig
from muster.sandbox.docker.backend import DockerBackend
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.sandbox.port import Mount, Sandbox, SandboxBackend, Snapshot
from muster.types import ImageSpec, Limits

Body = Callable[[SandboxBackend], Awaitable[None]]
Check = Callable[[Body], None]


def on_fake(body: Body, disk: FakeDisk) -> None:
    async def main() -> None:
        backend = FakeBackend(disk=disk)
        await body(backend)
        await backend.close()
        assert backend.live == 0

    clock.run_virtual(main())


def on_namespace(body: Body, state_dir: Path) -> None:
    async def main() -> None:
        backend = NamespaceBackend(SandboxConfig(state_dir=state_dir, kill_grace_s=0.1))
        try:
            await body(backend)
        finally:
            await backend.close()
        assert backend.live == 0

    clock.run(main())


def on_daemon(body: Body, host: str, state_dir: Path) -> None:
    async def main() -> None:
        config = SandboxConfig(docker_host=host, docker_base_image=daemons.BASE, state_dir=state_dir, kill_grace_s=0.1)
        backend = DockerBackend(config)
        try:
            await body(backend)
        finally:
            await backend.close()
        assert backend.live == 0

    clock.run(main())


def _real(name: str, state_dir: Path) -> Check:
    if name == "namespace":
        return lambda body: on_namespace(body, state_dir)
    host = daemons.host(name)
    return lambda body: on_daemon(body, host, state_dir)


REAL = [pytest.param(name, marks=pytest.mark.sandbox) for name in ("namespace", *daemons.KINDS)]


@pytest.fixture(params=["fake", *REAL])
def check(request: pytest.FixtureRequest, tmp_path: Path) -> Check:
    """Runs a body on one of the backends, and closes it. A second body has a new backend in the same place."""
    disk = FakeDisk()
    return (lambda body: on_fake(body, disk)) if request.param == "fake" else _real(request.param, tmp_path)


@pytest.fixture(params=REAL)
def check_real(request: pytest.FixtureRequest, tmp_path: Path) -> Check:
    """As `check`, for what the fake cannot do: it has no processes."""
    return _real(request.param, tmp_path)


async def image(backend: SandboxBackend) -> Snapshot:
    return await backend.prepare(ImageSpec(workdir="/app"))


async def fresh(backend: SandboxBackend) -> Sandbox:
    return await backend.fork(await image(backend), limits=Limits(), label="test")


def test_a_command_gives_its_output_and_its_exit_code(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        good = await sandbox.run("echo hello", timeout_s=5)
        bad = await sandbox.run("cat /app/nothing", timeout_s=5)
        assert (good.output, good.exit_code) == ("hello\n", 0)
        assert bad.exit_code == 1
        assert "No such file" in bad.output or "nothing" in bad.output
        assert (await sandbox.run("no-such-command", timeout_s=5)).exit_code == 127

    check(body)


def test_files_directory_and_variables_stay_between_commands(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        assert (await sandbox.run("pwd", timeout_s=5)).output == "/app\n"
        await sandbox.run("mkdir sub && cd sub && echo data > file; NAME=value", timeout_s=5)
        assert (await sandbox.run("pwd; cat file; echo $NAME", timeout_s=5)).output == "/app/sub\ndata\nvalue\n"

    check(body)


def test_a_time_out_is_a_result_and_the_sandbox_goes_on(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        result = await sandbox.run("echo before; sleep 100", timeout_s=0.3)
        assert result.timed_out
        assert result.exit_code is None
        assert result.output.startswith("before\n")
        assert 0.25 < result.duration_s < 5
        assert (await sandbox.run("echo after", timeout_s=5)).output == "after\n"

    check(body)


def test_a_command_that_ends_its_shell_is_a_result_and_the_files_stay(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        result = await sandbox.run("NAME=value; echo kept > /app/file; exit 3", timeout_s=5)
        assert result.shell_restarted
        assert result.exit_code == 3
        again = await sandbox.run("pwd; cat /app/file; echo $NAME", timeout_s=5)
        assert again.output == "/app\nkept\n\n"
        assert not again.shell_restarted

    check(body)


def test_read_and_write_carry_bytes(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.write("/app/blob", b"\x00\xff\n")
        assert await sandbox.read("/app/blob") == b"\x00\xff\n"
        assert (await sandbox.run("test -f /app/blob", timeout_s=5)).exit_code == 0
        with pytest.raises(FileNotFoundError):
            await sandbox.read("/app/missing")
        with pytest.raises(IsADirectoryError):
            await sandbox.read("/app")

    check(body)


def test_a_fork_has_the_files_and_the_shell_of_its_snapshot(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run("mkdir d; cd d; echo one > file; export NAME=value", timeout_s=5)
        snapshot = await sandbox.snapshot()
        fork = await backend.fork(snapshot, limits=Limits(), label="fork")
        assert (await fork.run("pwd; cat file; echo $NAME", timeout_s=5)).output == "/app/d\none\nvalue\n"

    check(body)


def test_a_snapshot_never_changes_whatever_its_parent_and_its_forks_do(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run("echo one > file", timeout_s=5)
        snapshot = await sandbox.snapshot()
        first = await backend.fork(snapshot, limits=Limits(), label="first")
        await sandbox.run("echo two > file; rm -f gone", timeout_s=5)
        await first.run("rm file; echo three > other", timeout_s=5)
        second = await backend.fork(snapshot, limits=Limits(), label="second")
        assert (await second.run("ls; cat file", timeout_s=5)).output == "file\none\n"
        assert (await sandbox.run("cat file", timeout_s=5)).output == "two\n"

    check(body)


def test_the_sandbox_goes_on_after_a_snapshot_where_it_was(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run("mkdir d; cd d; NAME=value", timeout_s=5)
        await sandbox.snapshot()
        assert await sandbox.alive()
        result = await sandbox.run("pwd; echo $NAME", timeout_s=5)
        assert (result.output, result.shell_restarted) == ("/app/d\nvalue\n", False)

    check(body)


def test_snapshots_of_forks_of_snapshots_keep_all_layers(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        snapshot = await image(backend)
        for number in range(4):
            sandbox = await backend.fork(snapshot, limits=Limits(), label="chain")
            await sandbox.run(f"echo {number} > file{number}; echo {number} > last", timeout_s=5)
            snapshot = await sandbox.snapshot()
            await sandbox.close()
        fork = await backend.fork(snapshot, limits=Limits(), label="end")
        result = await fork.run("ls; cat file0; cat last", timeout_s=5)
        assert result.output == "file0\nfile1\nfile2\nfile3\nlast\n0\n3\n"

    check(body)


def test_forks_of_one_snapshot_do_not_see_each_other(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        start = await image(backend)
        one = await backend.fork(start, limits=Limits(), label="one")
        two = await backend.fork(start, limits=Limits(), label="two")
        await one.run("echo secret > /app/file", timeout_s=5)
        assert (await two.run("cat /app/file", timeout_s=5)).exit_code == 1
        assert one.id != two.id

    check(body)


def test_mounts_are_seen_and_only_writable_ones_are_written(check: Check, tmp_path: Path) -> None:
    source, sink = tmp_path / "source", tmp_path / "sink"
    source.mkdir()
    sink.mkdir()
    (source / "given").write_text("from outside\n")

    async def body(backend: SandboxBackend) -> None:
        mounts = (
            Mount(source=source, target="/given"),
            Mount(source=sink, target="/taken", writable=True),
        )
        sandbox = await backend.fork(await image(backend), limits=Limits(), label="m", mounts=mounts)
        assert (await sandbox.run("cat /given/given", timeout_s=5)).output == "from outside\n"
        await sandbox.run("echo answer > /taken/answer", timeout_s=5)
        assert (sink / "answer").read_text() == "answer\n"

    check(body)


def test_a_closed_sandbox_refuses_commands_and_may_be_closed_again(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.close()
        assert not await sandbox.alive()
        await sandbox.close()
        with pytest.raises(SandboxError):
            await sandbox.run("echo hello", timeout_s=5)
        with pytest.raises(SandboxError):
            await sandbox.keep()

    check(body)


def test_the_same_image_gives_the_same_snapshot(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        assert await image(backend) == await image(backend)

    check(body)


def test_a_time_out_leaves_directory_and_variables(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        result = await sandbox.run("mkdir d; cd d; NAME=value; sleep 100; echo more", timeout_s=0.3)
        assert result.timed_out
        assert not result.shell_restarted
        after = await sandbox.run("pwd; echo $NAME", timeout_s=5)
        assert (after.output, after.shell_restarted) == ("/app/d\nvalue\n", False)

    check(body)


def test_sessions_keep_their_own_state_and_share_the_files(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run("mkdir d; cd d; NAME=one; echo data > file", timeout_s=5)
        other = await sandbox.run("pwd; echo $NAME; cat d/file; NAME=two", timeout_s=5, session="other")
        assert other.output == "/app\n\ndata\n"
        assert not other.shell_restarted
        assert (await sandbox.run("pwd; echo $NAME", timeout_s=5)).output == "/app/d\none\n"
        assert (await sandbox.run("echo $NAME", timeout_s=5, session="other")).output == "two\n"

    check(body)


def test_sessions_run_at_the_same_time(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run("true", timeout_s=5, session="other")
        long = asyncio.ensure_future(sandbox.run("echo begin; sleep 0.5; echo end", timeout_s=5))
        await clock.sleep(0.1)
        short = await sandbox.run("echo meanwhile", timeout_s=5, session="other")
        assert short.output == "meanwhile\n"
        assert not long.done()
        assert (await long).output == "begin\nend\n"

    check(body)


def test_ending_one_session_leaves_the_others_alone(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run("NAME=kept", timeout_s=5)
        ended = await sandbox.run("exit 4", timeout_s=5, session="other")
        assert (ended.exit_code, ended.shell_restarted) == (4, True)
        assert (await sandbox.run("echo $NAME", timeout_s=5)).output == "kept\n"
        assert (await sandbox.run("pwd", timeout_s=5, session="other")).output == "/app\n"

    check(body)


def test_a_command_that_writes_nothing_for_too_long_is_ended(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        result = await sandbox.run("echo before; sleep 100", timeout_s=50, silence_s=0.3)
        assert (result.timed_out, result.silent, result.output) == (True, True, "before\n")
        assert 0.25 < result.duration_s < 5
        assert (await sandbox.run("echo after", timeout_s=5, silence_s=5)).output == "after\n"

    check(body)


def test_a_command_that_goes_on_writing_is_not_silent(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        slow = "; ".join(f"echo {number}; sleep 0.2" for number in range(6))
        result = await sandbox.run(slow, timeout_s=30, silence_s=1)
        assert (result.exit_code, result.timed_out, result.silent) == (0, False, False)
        timed_out = await sandbox.run("echo x; sleep 100", timeout_s=0.3, silence_s=50)
        assert (timed_out.timed_out, timed_out.silent) == (True, False)

    check(body)


def test_cancelling_a_command_interrupts_it_and_the_shell_keeps_its_variables(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run("NAME=value", timeout_s=5)
        command = "echo lost; mkdir d; cd d; sleep 100; echo more > file"
        running = asyncio.ensure_future(sandbox.run(command, timeout_s=200))
        await clock.sleep(0.3)
        began = clock.now()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert clock.now() - began < 0.2
        after = await sandbox.run("pwd; echo $NAME; ls", timeout_s=5)
        assert (after.output, after.shell_restarted) == ("/app/d\nvalue\n", False)

    check(body)


def test_a_kept_state_is_forked_by_its_id_and_what_was_kept_goes_on_unaware(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run("mkdir d; cd d; echo one > file; NAME=value", timeout_s=5)
        kept = await sandbox.keep()
        assert kept is not None
        after = await sandbox.run("pwd; echo $NAME; echo two > file", timeout_s=5)
        assert (after.output, after.shell_restarted) == ("/app/d\nvalue\n", False)
        assert await backend.restore(kept.id) == kept
        fork = await backend.fork(kept, limits=Limits(), label="fork")
        assert (await fork.run("pwd; cat file; echo $NAME", timeout_s=5)).output == "/app/d\none\nvalue\n"
        await backend.discard(kept)

    check(body)


def test_a_kept_state_outlives_its_backend_until_it_is_discarded(check: Check) -> None:
    ids: list[str] = []

    async def before(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        for number in range(2):
            await sandbox.run(f"echo {number} >> file; cd /tmp", timeout_s=5)
            kept = await sandbox.keep()
            assert kept is not None
            ids.append(kept.id)
        await backend.discard(kept)
        assert await backend.restore(ids[1]) is None

    async def after(backend: SandboxBackend) -> None:
        state = await backend.restore(ids[0])
        assert state is not None
        fork = await backend.fork(state, limits=Limits(), label="later")
        assert (await fork.run("pwd; cat /app/file", timeout_s=5)).output == "/tmp\n0\n"
        final = await fork.snapshot()
        await backend.discard(state)
        await fork.close()
        again = await backend.fork(final, limits=Limits(), label="verifier")
        assert (await again.run("cat /app/file", timeout_s=5)).output == "0\n"

    async def at_last(backend: SandboxBackend) -> None:
        assert await backend.restore(ids[0]) is None

    for body in (before, after, at_last):
        check(body)


def test_nothing_is_kept_while_the_agent_has_something_running_that_would_be_lost(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run("sleep 1 &", timeout_s=5)
        assert await sandbox.keep() is None
        await sandbox.run("sleep 1.5", timeout_s=5)
        kept = await sandbox.keep()
        assert kept is not None
        await backend.discard(kept)
        await sandbox.run("NAME=value", timeout_s=5, session="other")
        assert await sandbox.keep() is None
        assert (await sandbox.run("echo $NAME", timeout_s=5, session="other")).output == "value\n"

    check(body)


def test_nothing_is_kept_while_the_agent_holds_something_in_memory_alone(check_real: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        for hold, let_go in (
            ("echo x > /dev/shm/file", "rm /dev/shm/file"),
            ("exec 5> /tmp/open", "exec 5>&-"),
        ):
            await sandbox.run(hold, timeout_s=5)
            assert await sandbox.keep() is None, hold
            await sandbox.run(let_go, timeout_s=5)
            kept = await sandbox.keep()
            assert kept is not None, let_go
            await backend.discard(kept)

    check_real(body)


def test_what_a_command_used_is_counted_and_adds_up(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        used = [(await sandbox.run("ls /; cat /app/nothing", timeout_s=5)).counters for _ in range(3)]
        total = await sandbox.close()
        for name in ("cpu_s", "oom_kills", "pids_refused"):
            parts = [getattr(counters, name) for counters in used]
            if None not in parts:
                assert 0 <= sum(parts) <= getattr(total, name), name
        assert used[0].cpu_s is None or used[0].cpu_s > 0
        assert await sandbox.close() == total

    check(body)


def test_a_toolchain_hides_what_an_agent_put_beside_the_tools(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        start = await image(backend)
        sandbox = await backend.fork(start, limits=Limits(), label="agent")
        await sandbox.run("mkdir -p /usr/bin; echo evil > /usr/bin/marker; echo mine > /app/file", timeout_s=5)
        final = await sandbox.snapshot()
        verifier = await backend.fork(final, limits=Limits(), label="verifier", toolchain=start)
        assert (await verifier.run("cat /app/file", timeout_s=5)).output == "mine\n"
        assert (await verifier.run("test -f /usr/bin/marker", timeout_s=5)).exit_code == 1
        assert (await verifier.run("echo x > /usr/bin/marker && test -f /usr/bin/marker", timeout_s=5)).exit_code != 0

    check(body)


def test_what_runs_in_the_background_goes_on_between_commands(check_real: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        ticking = "touch /app/ticks; (while :; do echo x >> /app/ticks; sleep 0.05; done) & echo started"
        started = await sandbox.run(ticking, timeout_s=5)
        assert started.output == "started\n"
        before = len(await sandbox.read("/app/ticks"))
        await sandbox.run("sleep 100", timeout_s=0.2)  # an interrupt spares it
        await clock.sleep(0.2)
        assert len(await sandbox.read("/app/ticks")) > before
        await sandbox.run("exit", timeout_s=5)  # and so does the end of the shell that started it
        before = len(await sandbox.read("/app/ticks"))
        await clock.sleep(0.3)
        assert len(await sandbox.read("/app/ticks")) > before

    check_real(body)


@pytest.mark.parametrize(
    "stubborn",
    [
        "while :; do :; done",
        "trap '' INT; sleep 100",
        "(trap '' INT; while :; do sleep 0.1; done)",
        "bash -c 'trap \"\" INT TERM; sleep 100; sleep 100'; echo more",
        "kill -STOP $$",
        "read -r x < <(sleep 100)",
        "x=$(sleep 100); y=$(sleep 100)",
    ],
)
def test_the_shell_survives_what_does_not_heed_an_interrupt(check_real: Check, stubborn: str) -> None:
    async def body(backend: SandboxBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run("cd /tmp; NAME=value", timeout_s=5)
        result = await sandbox.run(stubborn, timeout_s=0.3)
        assert (result.timed_out, result.shell_restarted) == (True, False)
        assert "more" not in result.output
        assert result.duration_s < 5
        assert (await sandbox.run("pwd; echo $NAME", timeout_s=5)).output == "/tmp\nvalue\n"

    check_real(body)
