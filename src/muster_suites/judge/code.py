"""Checks of programs. Law: a program of the agent's runs in a process of its own, as a user of its own, on copies,
without the environment, with limits; only what it prints counts, and it is compared here.

    source files ─copy─► /tmp/judge-*/ ─guest: driver, calls on stdin─► answers (JSON) ─► compared with what is expected

The guest may not read what is expected: the files of `/tests` belong to their owner alone, and where the kernel has
Landlock nothing but the system and the copies can be opened at all. In an ordinary user's namespace, which has no
second user, Landlock alone protects what is expected and the reward. All processes of the program are dead when the
reward is written; without a second user those that left its session live on, and can open nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any, cast

from muster_suites.judge.files import Refused, describe, read, same

OUTPUT_BYTES = 1024 * 1024
MEMORY_BYTES = 1024 * 1024 * 1024
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_NO_REPLACE_OBJECTS": "1",
}

DRIVER = """
import importlib, json, os, sys
answers, sys.stdout = sys.stdout, sys.stderr
sys.path.insert(0, sys.argv[1])
found = []
for call in json.load(sys.stdin):
    try:
        function = getattr(importlib.import_module(call["module"]), call["function"])
        found.append({"value": function(*call["arguments"])})
    except Exception as error:
        found.append({"raises": type(error).__name__})
json.dump(found, answers)
"""


def check_calls(source: str, calls: list[dict[str, Any]], timeout_s: float = 10) -> list[str]:
    """Import modules below `source` and call them: `module`, `function`, `arguments`, and the `value` that comes back,
    or which exception it `raises`."""
    with Scratch() as place:
        copy_files(source, place, suffix=".py")
        asked = [{key: call[key] for key in ("module", "function", "arguments")} for call in calls]
        argv = ["/usr/bin/python3", "-I", "-S", "-B", "-c", DRIVER, str(place)]
        _, printed = run_as_guest(argv, place=place, stdin=json.dumps(asked).encode(), timeout_s=timeout_s)
    try:
        answers: Any = json.loads(printed)
    except (ValueError, RecursionError):
        return [f"{source}: the program printed no answers"]
    if not isinstance(answers, list) or len(cast("list[Any]", answers)) != len(calls):
        return [f"{source}: the program did not answer all {len(calls)} calls"]
    problems: list[str] = []
    for call, found in zip(calls, cast("list[Any]", answers), strict=True):
        wanted = {key: call[key] for key in ("value", "raises") if key in call}
        if not same(found, wanted):
            problems.append(f"{call['module']}.{call['function']}: wrong on a hidden case")
    return problems


class Scratch:
    """A directory for copies, readable by all, removed at the end."""

    def __enter__(self) -> Path:
        self._place = Path(tempfile.mkdtemp(prefix="judge-", dir="/tmp"))
        self._place.chmod(0o755)
        return self._place

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._place, ignore_errors=True)


def copy_files(source: str, place: Path, *, suffix: str = "", most: int = 5000) -> None:
    """Copy the regular files below `source`; links and special files are left out. Raises `Refused`."""
    found = describe(source)
    wanted = [path for path, there in found.items() if there["type"] == "file" and path.endswith(suffix)]
    if len(wanted) > most:
        raise Refused(f"{source}: more than {most} files")
    for path in wanted:
        target = place / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(read(f"{source}/{path}"))


def run_as_guest(argv: list[str], *, place: Path, stdin: bytes = b"", timeout_s: float = 10) -> tuple[int, bytes]:
    """Run in the directory `place`. The exit code (which says little) and what it printed; all it started is dead.

    Raises `Refused` on a time-out, and when it printed `OUTPUT_BYTES` or more.
    """
    guest = _guest()
    with tempfile.TemporaryFile(dir="/tmp") as output, tempfile.TemporaryFile(dir="/tmp") as questions:
        questions.write(stdin)
        questions.seek(0)
        program = subprocess.Popen(
            argv,
            stdin=questions,
            stdout=output,
            stderr=subprocess.DEVNULL,
            cwd=place,
            env=ENVIRONMENT,
            start_new_session=True,
            preexec_fn=lambda: _confine(str(place)),
            user=guest,
            group=guest,
            extra_groups=None if guest is None else [],
        )
        try:
            code = program.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Refused(f"{argv[0]}: no answer in {timeout_s:g} s") from None
        finally:
            _kill(program, guest)
        output.seek(0)
        printed = output.read(OUTPUT_BYTES)
    if len(printed) == OUTPUT_BYTES:
        raise Refused(f"{argv[0]}: printed {OUTPUT_BYTES} bytes")
    return code, printed


def _guest() -> int | None:
    """A user id that no one else has here; None where there is no second one."""
    guest = 50_000 + os.getpid() % 9_000
    ranges = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    mapped = any(int(first) <= guest < int(first) + int(count) for first, _, count in ranges)
    return guest if os.geteuid() == 0 and mapped else None


def _kill(program: subprocess.Popen[bytes], guest: int | None) -> None:
    """Kill the program and all it started: its session, and, as a user of its own, also what left it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()
    if guest is None:
        return
    killer = os.fork()
    if killer == 0:
        try:
            os.setgroups([])
            os.setresgid(guest, guest, guest)
            os.setresuid(guest, guest, guest)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(killer, 0)


def _confine(place: str) -> None:
    """In the child, before the program: limits, and Landlock where the kernel has it (the numbers are Linux's)."""
    for kind, most in ((resource.RLIMIT_FSIZE, OUTPUT_BYTES), (resource.RLIMIT_AS, MEMORY_BYTES)):
        resource.setrlimit(kind, (most, most))
    call = ctypes.CDLL(None, use_errno=True).syscall
    handled = struct.pack("Q", (1 << 13) - 1)  # every access to files of the first version
    rules = call(444, handled, len(handled), 0)
    if rules < 0:
        return
    read_only = (1 << 0) | (1 << 2) | (1 << 3)  # execute, read a file, list a directory
    for path in ("/usr", "/lib", "/lib64", "/bin", "/etc", "/dev", place):
        if os.path.exists(path):  # noqa: PTH110
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = read_only | (1 << 1) if path == "/dev" else read_only
            call(445, rules, 1, struct.pack("=Qi", allowed, opened), 0)
    ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
    call(446, rules, 0)
