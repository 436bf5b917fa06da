"""Attacks of a model on its own shell and on what it talks to us by: the next command finds a shell that works."""

from __future__ import annotations

import asyncio
import os

import pytest

from muster.errors import SandboxLost
from muster.sandbox.namespace.backend import NamespaceBackend
from sandbox.conftest import OnBackend
from sandbox.namespace.hostile import fresh, one

pytestmark = pytest.mark.sandbox


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


def test_killing_everything_costs_the_shell_at_most(on_backend: OnBackend) -> None:
    assert one(on_backend, "kill -9 -1; kill $$; echo alive").output.endswith("alive\n")
    result = one(on_backend, "python3 -c 'import os; os.kill(-1, 9)'; kill -9 $$")
    assert result.shell_restarted
    assert result.exit_code == 137


def test_no_signal_ends_the_process_that_keeps_the_sandbox(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run("sleep 1000 & cd /tmp", timeout_s=5)
        result = await sandbox.run("for n in {1..64}; do kill -$n 1; done 2>/dev/null; sleep 0.1", timeout_s=5)
        assert not result.shell_restarted
        # nor does one that we cannot see, since the shell and what it started are the same
        assert (await sandbox.run("pwd; jobs -r | wc -l; exit", timeout_s=5)).output.split() == ["/tmp", "1"]
        assert (await sandbox.run("pgrep -c sleep", timeout_s=5)).output == "1\n"

    on_backend(body)


TRACERS = {
    "ptrace": "libc.ptrace(0x4206, 1, 0, 0x100000)",  # seize; on our end, kill it
    "memory": "libc.process_vm_writev(1, None, 0, None, 0, 0)",
    "limit": "libc.prlimit(1, 0, (ctypes.c_uint64 * 2)(0, 0), None)",  # a second of CPU time
}


@pytest.mark.parametrize("way", TRACERS)
def test_no_debugger_reaches_the_process_that_keeps_the_sandbox(on_backend: OnBackend, way: str) -> None:
    program = f"import ctypes; libc = ctypes.CDLL(None, use_errno=True); print({TRACERS[way]}, ctypes.get_errno())"
    assert one(on_backend, f"python3 -c '{program}'").output == "-1 1\n"
    own = "import ctypes; print(ctypes.CDLL(None).ptrace(0, 0, 0, 0))"  # be traced by one's parent
    assert one(on_backend, f"python3 -c '{own}'").output == "0\n"


def test_junk_in_every_descriptor_that_it_finds_ends_nothing(on_backend: OnBackend) -> None:
    junk = (
        "for f in /proc/1/fd/* /proc/$$/fd/*; do "
        "  timeout 0.2 bash -c 'printf \"\\0ready 0\\n1 start - -\\nw2 wait 2\\n\" > $0' $f; done 2>/dev/null; true"
    )
    one(on_backend, junk, timeout_s=20)


def test_a_thief_of_our_own_messages_gains_a_fresh_shell(on_backend: OnBackend) -> None:
    # whoever reads what PID 1 should read keeps it from starting shells
    steal = "setsid bash -c 'while read -r line; do :; done' < /proc/1/fd/58 & kill -9 $$"
    result = one(on_backend, steal, start_timeout_s=1.0)
    assert result.shell_restarted


@pytest.mark.parametrize(
    "trick",
    [
        "builtin() { :; }",
        "stty raw -isig -echo </dev/tty; alias builtin=false eval=false",
        "trap 'echo x' DEBUG ERR RETURN EXIT; PROMPT_COMMAND='echo y; false'",
        "exec < <(sleep 1000)",
        "while :; do cat /dev/tty; done &",
        "exec 3<>/dev/ptmx; setsid -c bash -c 'sleep 1000' < /dev/pts/0 &",
    ],
)
def test_tricks_on_the_shell_do_not_outlive_a_time_out(on_backend: OnBackend, trick: str) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run(trick, timeout_s=2)
        await sandbox.run("sleep 100", timeout_s=0.5)
        assert (await sandbox.run("echo still here", timeout_s=5)).output.endswith("still here\n")

    on_backend(body)


def test_what_hides_from_its_shell_is_killed_with_the_command(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fresh(backend)
        await sandbox.run("setsid sleep 1001 & sleep 0.1", timeout_s=5)  # of an earlier command: it may stay
        hide = "(setsid bash -c 'trap \"\" INT; (sleep 1002 & sleep 1002) & sleep 1002' &); sleep 100"
        assert (await sandbox.run(hide, timeout_s=0.5)).timed_out
        found = await sandbox.run("pgrep -af '^sleep' | cut -d' ' -f2- | sort | uniq -c", timeout_s=5)
        assert found.output.split() == ["1", "sleep", "1001"]

    on_backend(body)


def test_a_daemon_that_holds_the_pipes_blocks_nothing(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fresh(backend)
        daemon = "(setsid bash -c 'while :; do echo noise; sleep 0.01; done' &) ; echo started"
        result = await sandbox.run(daemon, timeout_s=5)
        assert "started\n" in result.output
        assert result.duration_s < 2
        assert (await sandbox.run("true", timeout_s=5)).exit_code == 0

    on_backend(body)


def test_a_server_with_a_long_log_goes_on(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        sandbox = await fresh(backend)
        # more than a pipe holds, between two commands
        await sandbox.run("(head -c 5000000 /dev/zero | tr '\\0' x; touch done) &", timeout_s=5)
        for _ in range(100):
            await asyncio.sleep(0.05)
            if (await sandbox.run("test -f done", timeout_s=5)).exit_code == 0:
                return
        raise AssertionError("it hangs")

    on_backend(body)


@pytest.mark.parametrize(
    "close",
    [
        "exec 0<&- 1>&- 2>&- 41>&- 42<&- 43>&-",
        "exec 41>/dev/null 42</dev/null 43>/dev/null",
        'for n in {0..255}; do eval "exec $n>&-"; done 2>/dev/null',
        'for n in {3..255}; do eval "exec $n<>/dev/null"; done 2>/dev/null',
    ],
)
def test_closing_descriptors_does_not_silence_the_next_command(on_backend: OnBackend, close: str) -> None:
    one(on_backend, close, timeout_s=1)


def test_a_gigabyte_of_output_costs_neither_memory_nor_the_shell(on_backend: OnBackend) -> None:
    result = one(on_backend, "yes | head -c 1G; echo last", timeout_s=60, output_cap_bytes=1000)
    assert result.exit_code == 0
    assert result.output.endswith("last\n")
    assert result.omitted_bytes == (1 << 30) + 5 - 1000
    terminal = one(on_backend, "echo first; yes | head -c 1G > /dev/tty", timeout_s=0.5, output_cap_bytes=1000)
    assert terminal.timed_out
    assert not terminal.shell_restarted
    assert terminal.output.startswith("first\n")
    assert len(terminal.output) < 1100


def test_what_goes_to_the_terminal_is_part_of_the_output(on_backend: OnBackend) -> None:
    result = one(on_backend, "tty; ps -o tty= $$; echo to the terminal > /dev/tty; test -t 1; echo $?")
    assert sorted(result.output.splitlines()) == ["1", "not a tty", "pts/0", "to the terminal"]


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


def test_a_sandbox_killed_from_outside_is_not_lost_by_the_agent(on_backend: OnBackend) -> None:
    async def body(backend: NamespaceBackend) -> None:
        for victim in ("bubblewrap", "init"):
            sandbox = await fresh(backend)
            process = sandbox._life.supervisor  # pyright: ignore  (there is no other way to kill it as a host would)
            running = asyncio.ensure_future(sandbox.run("sleep 5", timeout_s=10))
            await asyncio.sleep(0.05)
            os.kill(process.pid if victim == "bubblewrap" else process.init_pid, 9)
            with pytest.raises(SandboxLost) as caught:
                await running
            assert not caught.value.by_agent, victim

    on_backend(body)


def test_an_exit_code_that_looks_like_a_kill_does_not_shift_the_blame(on_backend: OnBackend) -> None:
    result = one(on_backend, "exit 137")
    assert result.shell_restarted
