"""What a model may try, and what the host shows or loses: nothing."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from muster.errors import SandboxLost
from muster.sandbox.namespace import NamespaceBackend
from muster.sandbox.port import Result, Sandbox
from muster.types import ImageSpec, Limits
from sandbox.conftest import OnBackend

pytestmark = pytest.mark.sandbox
MIB = 1024 * 1024


async def fresh(backend: NamespaceBackend, limits: Limits | None = None) -> Sandbox:
    start = await backend.prepare(ImageSpec(workdir="/app"))
    return await backend.fork(start, limits=limits or Limits(), label="hostile")


def one(
    on_backend: OnBackend, command: str, timeout_s: float = 5, limits: Limits | None = None, **config: object
) -> Result:
    """The result of one command; afterwards the sandbox must still answer."""
    results: list[Result] = []

    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fresh(backend, limits)
        results.append(await sandbox.run(command, timeout_s))
        for _ in range(50):  # what a bomb left behind may need a moment to die
            after = await sandbox.run("echo still here", timeout_s=5)
            if after.output == "still here\n":
                return
            await asyncio.sleep(0.05)
        raise AssertionError(after)

    on_backend(body, **config)
    return results[0]


def test_it_sees_no_environment_of_the_host(on_backend: OnBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "abc")
    result = one(on_backend, "env; cat /proc/1/environ; cat /proc/[0-9]*/environ")
    assert "SECRET" not in result.output


def test_it_sees_no_home_no_passwords_and_no_files_of_the_host(on_backend: OnBackend) -> None:
    result = one(on_backend, f"ls -A /root /home /app /tmp /run; cat /etc/shadow; ls {Path.cwd()}")
    listed = result.output.split("cat:")[0]
    assert listed == "/app:\n\n/home:\n\n/root:\n\n/run:\n\n/tmp:\n"
    assert "/etc/shadow: No such file" in result.output


def test_it_sees_only_its_own_processes(on_backend: OnBackend) -> None:
    assert one(on_backend, "echo /proc/[0-9]*").output == "/proc/1\n"


def test_it_cannot_reach_a_server_on_the_loopback_of_the_host(on_backend: OnBackend) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = one(on_backend, f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached")
    assert "reached" not in result.output
    assert "refused" in result.output


def test_it_cannot_write_to_kernel_settings_or_to_usr(on_backend: OnBackend) -> None:
    # opening is enough to know; nothing is written even if this test fails
    result = one(
        on_backend,
        "for f in /proc/sys/kernel/core_pattern /proc/sys/vm/drop_caches /proc/sysrq-trigger /usr/bin/x; do "
        "  (: >> $f) && echo opened $f; done 2>/dev/null; chmod 444 /proc/meminfo 2>/dev/null && echo changed",
    )
    assert result.output == ""


def test_it_cannot_make_namespaces_mounts_or_devices(on_backend: OnBackend) -> None:
    result = one(
        on_backend,
        "unshare -U true && echo user; unshare -n true && echo net; unshare -m true && echo mount; "
        "mount -t tmpfs none /mnt && echo mounted; mknod /tmp/m c 1 1 && echo device; "
        "chroot / true && echo chroot is fine; true",
    )
    lines = [line for line in result.output.splitlines() if not line.startswith(("unshare", "mount", "mknod", " "))]
    assert lines == ["chroot is fine"]


def test_it_cannot_change_the_devices_of_the_host(on_backend: OnBackend) -> None:
    before = Path("/dev/null").stat().st_mode
    # the mode is the one it has, so nothing is lost if this test fails; the time of change would tell
    changed = Path("/dev/null").stat().st_ctime_ns
    result = one(on_backend, "chmod 666 /dev/null; touch /dev/null; echo x > /dev/null; head -c 3 /dev/zero | wc -c")
    assert result.output.strip() == "3"
    assert (Path("/dev/null").stat().st_mode, Path("/dev/null").stat().st_ctime_ns) == (before, changed)


def test_a_fork_bomb_meets_the_process_limit(on_backend: OnBackend) -> None:
    limits = Limits(pids=32)
    result = one(on_backend, "f() { f | f & }; f; wait; sleep 30", timeout_s=0.5, limits=limits)
    assert result.timed_out or "Resource temporarily unavailable" in result.output


def test_a_memory_hog_is_killed_alone(on_backend: OnBackend) -> None:
    limits = Limits(memory_bytes=64 * MIB)
    result = one(on_backend, 'python3 -c "b = bytearray(200 << 20)"; echo code $?', limits=limits)
    assert result.output.endswith("code 137\n")


def test_a_shell_that_eats_all_memory_is_replaced(on_backend: OnBackend) -> None:
    limits = Limits(memory_bytes=48 * MIB)
    result = one(on_backend, "x=$(head -c 200000000 /dev/zero | tr '\\0' a)", timeout_s=20, limits=limits)
    assert result.out_of_memory
    assert result.shell_restarted


def test_a_flood_keeps_head_and_tail_and_no_more(on_backend: OnBackend) -> None:
    result = one(on_backend, "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo last", output_cap_bytes=1000)
    assert result.output.startswith("first\n")
    assert result.output.endswith("last\n")
    assert result.omitted_bytes == 3_000_000 + 11 - 1000
    assert len(result.output) < 1100


def test_an_endless_flood_ends_at_the_time_out(on_backend: OnBackend) -> None:
    result = one(on_backend, "yes", timeout_s=0.3)
    assert result.timed_out
    assert not result.shell_restarted


def test_killing_everything_leaves_the_shell(on_backend: OnBackend) -> None:
    assert one(on_backend, "kill -9 -1; kill -9 $$; kill $$; echo alive").output.endswith("alive\n")


def test_a_builtin_loop_costs_the_shell_but_not_the_files(on_backend: OnBackend) -> None:
    result = one(on_backend, "while :; do :; done", timeout_s=0.2)
    assert result.timed_out
    assert result.shell_restarted


def test_closing_descriptors_does_not_silence_the_next_command(on_backend: OnBackend) -> None:
    assert one(on_backend, "exec 0<&- 1>&- 2>&- 61>&- 62<&- 63>&-").exit_code == 0


def test_redefined_builtins_do_not_confuse_the_protocol(on_backend: OnBackend) -> None:
    assert one(on_backend, "read() { false; }; printf() { false; }; eval() { false; }; true").exit_code == 0


@pytest.mark.parametrize("setting", ["set -e; false", "set -eu; echo $UNSET", "exec true", "kill -SEGV $$"])
def test_a_shell_that_ends_is_replaced(on_backend: OnBackend, setting: str) -> None:
    one(on_backend, setting)


def test_binary_output_and_broken_utf8_are_decoded(on_backend: OnBackend) -> None:
    assert one(on_backend, r"printf 'a\xff\x00b'").output == "a\ufffd\x00b"


def test_a_background_process_neither_blocks_the_answer_nor_outlives_the_sandbox(on_backend: OnBackend) -> None:
    result = one(on_backend, "sleep 1000 & echo started", timeout_s=5)
    assert result.output == "started\n"
    assert result.duration_s < 1


def test_a_full_disk_is_something_the_model_reads(on_backend: OnBackend) -> None:
    limits = Limits(disk_bytes=8 * MIB)

    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fresh(backend, limits)
        fill = "for i in 1 2 3 4 5 6 7 8; do head -c 4M /dev/zero > f$i; done; sleep 5"
        result = await sandbox.run(fill, timeout_s=4)
        assert "No space left on device" in result.output
        assert not result.timed_out
        large = await sandbox.run("rm f*; head -c 20M /dev/zero > one", timeout_s=4)
        assert large.exit_code != 0
        # freeing space is allowed, and then there is room again
        assert (await sandbox.run("rm -f one; echo x > small; cat small", timeout_s=4)).output == "x\n"

    on_backend(body)


def test_no_path_of_the_sandbox_leads_the_host_out_of_it(on_backend: OnBackend, tmp_path: Path) -> None:
    (tmp_path / "host").write_text("of the host")

    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run(f"ln -s {tmp_path}/host link; ln -s / root; mkfifo pipe", timeout_s=5)
        for path in ("/app/link", f"/app/root/{tmp_path}/host", f"/../../..{tmp_path}/host"):
            with pytest.raises(FileNotFoundError):
                await sandbox.read(path)
        with pytest.raises(OSError, match="not a regular file"):
            await sandbox.read("/app/pipe")
        await sandbox.run("rm link; ln -s /app/target link", timeout_s=5)
        await sandbox.write("/app/link", b"inside")
        assert await sandbox.read("/app/target") == b"inside"

    on_backend(body)


def test_a_sandbox_whose_files_start_no_shell_is_lost_by_the_agent(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fresh(backend)
        with pytest.raises(SandboxLost) as caught:
            await sandbox.run("rm /lib64; exit", timeout_s=5)
        assert caught.value.by_agent
        assert not await sandbox.alive()

    on_backend(body)


def test_a_sandbox_killed_from_outside_is_not_lost_by_the_agent(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        for victim in ("bubblewrap", "init"):
            sandbox = await fresh(backend)
            shell = sandbox._shell  # pyright: ignore  (there is no other way to kill it as a host would)
            running = asyncio.ensure_future(sandbox.run("sleep 5", timeout_s=10))
            await asyncio.sleep(0.05)
            os.kill(shell.pid if victim == "bubblewrap" else shell.init_pid, 9)
            with pytest.raises(SandboxLost) as caught:
                await running
            assert not caught.value.by_agent, victim

    on_backend(body)


def test_an_exit_code_that_looks_like_a_kill_does_not_shift_the_blame(on_backend: OnBackend) -> None:
    result = one(on_backend, "exit 137")
    assert result.shell_restarted


def test_removal_copes_with_deep_and_protected_directories(on_backend: OnBackend) -> None:
    deep = "mkdir -p $(printf 'd/%.0s' $(seq 1300)) && mkdir locked && chmod 0 locked"
    assert one(on_backend, deep, timeout_s=20).exit_code == 0
