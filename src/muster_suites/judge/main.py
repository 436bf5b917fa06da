"""All checks, and the reward: 1 when every one holds, else 0.

Law: the reward file is the last thing written, new, by this process alone. Whatever a final state holds is a
problem found, never a crash.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from muster_suites.judge.code import check_calls
from muster_suites.judge.cron import check_crontab
from muster_suites.judge.files import (
    Refused,
    check_absent,
    check_json,
    check_lines,
    check_same_file,
    check_tree,
)
from muster_suites.judge.git import check_git

CHECKS = {
    "tree": check_tree,
    "absent": check_absent,
    "lines": check_lines,
    "json": check_json,
    "same_file": check_same_file,
    "crontab": check_crontab,
    "calls": check_calls,
    "git": check_git,
}


def judge(expected: list[dict[str, Any]]) -> list[str]:
    """Problems of all checks; each is `{"check": name, ...arguments}`."""
    problems: list[str] = []
    for entry in expected:
        arguments = {key: value for key, value in entry.items() if key != "check"}
        try:
            problems += CHECKS[entry["check"]](**arguments)
        except Refused as refused:
            problems.append(str(refused))
        except OSError as error:
            problems.append(f"{entry['check']}: {error.strerror}")
    return problems


def main(tests: str = "/tests", logs: str = "/logs/verifier") -> None:
    os.umask(0o022)  # the guest reads the copies
    with open(f"{tests}/expected.json", encoding="utf-8") as file:  # noqa: PTH123
        problems = judge(json.load(file))
    for problem in problems:
        sys.stdout.write(f"{problem.encode('ascii', 'backslashreplace').decode()}\n")
    os.makedirs(logs, exist_ok=True)  # noqa: PTH103
    path = f"{logs}/reward.txt"
    if os.path.lexists(path):
        os.unlink(path)  # noqa: PTH108
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(handle, b"0\n" if problems else b"1\n")
    os.close(handle)
