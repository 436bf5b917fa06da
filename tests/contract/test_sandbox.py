"""What every sandbox backend keeps, the fake included."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from muster import clock
from muster.errors import SandboxError
from muster.sandbox.config import SandboxConfig
from muster.sandbox.namespace import NamespaceBackend
from muster.sandbox.port import Mount, Sandbox, SandboxBackend, Snapshot
from muster.sim.fake_sandbox import FakeBackend
from muster.types import ImageSpec, Limits

Body = Callable[[SandboxBackend], Awaitable[None]]
Check = Callable[[Body], None]


def on_fake(body: Body) -> None:
    async def main() -> None:
        backend = FakeBackend()
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


@pytest.fixture(params=["fake", pytest.param("namespace", marks=pytest.mark.sandbox)])
def check(request: pytest.FixtureRequest, tmp_path: Path) -> Check:
    """Runs a body on one of the backends, and closes it."""
    if request.param == "fake":
        return on_fake
    return lambda body: on_namespace(body, tmp_path)


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

    check(body)


def test_the_same_image_gives_the_same_snapshot(check: Check) -> None:
    async def body(backend: SandboxBackend) -> None:
        assert await image(backend) == await image(backend)

    check(body)
