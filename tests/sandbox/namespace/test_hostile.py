"""Attacks of a model on its host and its limits, and what the host shows or loses: nothing."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from muster.errors import SandboxLost
from muster.sandbox.namespace.backend import NamespaceBackend
from muster.types import Limits
from sandbox.conftest import OnBackend
from sandbox.namespace.hostile import MIB, fresh, one

pytestmark = pytest.mark.sandbox


def test_it_sees_no_environment_of_the_host(on_backend: OnBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "abc")
    result = one(on_backend, "env; cat /proc/1/environ; cat /proc/[0-9]*/environ")
    assert "SECRET" not in result.output


def test_it_gets_no_descriptor_that_its_host_left_open(on_backend: OnBackend, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    with (tmp_path / "secret").open() as secret:
        os.set_inheritable(secret.fileno(), True)
        found = one(on_backend, "readlink /proc/[0-9]*/fd/*; ls /proc/self/fd")
    assert "secret" not in found.output
    assert found.output.splitlines()[-4:] == ["0", "1", "2", "3"]  # 3: of `ls` itself


def test_it_sees_no_home_no_passwords_and_no_files_of_the_host(on_backend: OnBackend) -> None:
    result = one(on_backend, f"ls -A /root /home /app /tmp /run; cat /etc/shadow; ls {Path.cwd()}")
    listed = result.output.split("cat:")[0]
    assert listed == "/app:\n\n/home:\n\n/root:\n\n/run:\n\n/tmp:\n"
    assert "/etc/shadow: No such file" in result.output


def test_it_sees_only_its_own_processes(on_backend: OnBackend) -> None:
    assert one(on_backend, "echo /proc/[0-9]*").output == "/proc/1 /proc/2\n"


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


def test_shared_memory_and_dev_have_an_end(on_backend: OnBackend) -> None:
    limits = Limits(memory_bytes=256 * MIB)
    result = one(on_backend, "head -c 100M /dev/zero > /dev/shm/x; du -m /dev/shm/x", limits=limits)
    assert "No space left on device" in result.output
    assert result.output.split()[-2] == "64"
    filled = one(on_backend, "head -c 1G /dev/zero > /dev/x; kill -9 $$", timeout_s=20, limits=limits)
    assert filled.counters.oom_kills


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user cannot limit them")
def test_terminals_have_an_end_for_one_sandbox_alone(on_backend: OnBackend) -> None:
    program = (
        "import os, time\n"
        "try:\n"
        "    while True: os.open('/dev/ptmx', os.O_RDWR)\n"
        "except OSError as error: print(error.strerror, flush=True)\n"
        "time.sleep(100)"
    )

    async def body(backend: NamespaceBackend) -> None:
        greedy = await fresh(backend)
        taking = asyncio.ensure_future(greedy.run(f'python3 -c "{program}"', timeout_s=100, silence_s=1))
        other = await fresh(backend)
        assert (await other.run("echo works", timeout_s=5, session="second")).output == "works\n"
        assert (await taking).output.startswith("No space left on device\n")
        assert (await greedy.run("echo works", timeout_s=5, session="second")).output == "works\n"

    on_backend(body)


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


def test_removal_copes_with_deep_and_protected_directories(on_backend: OnBackend) -> None:
    deep = "mkdir -p $(printf 'd/%.0s' $(seq 1300)) && mkdir locked && chmod 0 locked"
    assert one(on_backend, deep, timeout_s=20).exit_code == 0


def test_a_host_without_free_disk_loses_the_sandbox_and_blames_nobody_in_it(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fresh(backend)
        with pytest.raises(SandboxLost, match="this host runs out of disk") as caught:
            await sandbox.run("sleep 0.3; echo data > file; sleep 100", timeout_s=50)
        assert not caught.value.by_agent

    on_backend(body, free_disk_bytes=2**60)
