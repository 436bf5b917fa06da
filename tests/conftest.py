"""Fixtures of all tests: the daemons of this process end with it, and the summary says what ran on which backend."""

from __future__ import annotations

import re
from collections import Counter

import hypothesis
import pytest

import daemons

# the same examples each time; and how long one takes is the machine's affair
hypothesis.settings.register_profile("muster", derandomize=True, deadline=None)
hypothesis.settings.load_profile("muster")

_CONTRACT = re.compile(r"contract/test_sandbox\.py::.*\[(?:.*-)?(namespace|docker|podman)(?:-.*)?\]$")


def pytest_sessionfinish() -> None:
    daemons.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """`sandbox contract: namespace 24 run, docker 24 run, podman 24 skipped (why)`."""
    counts = {backend: Counter[str]() for backend in ("namespace", "docker", "podman")}
    reasons: dict[str, str] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            if (match := _CONTRACT.search(getattr(report, "nodeid", ""))) is None:
                continue
            counts[match[1]]["skipped" if outcome == "skipped" else "run"] += 1
            if outcome == "skipped" and isinstance(report.longrepr, tuple):
                reasons[match[1]] = str(report.longrepr[2]).removeprefix("Skipped: ")
    if not any(counts.values()):
        return
    said = [
        ", ".join(f"{number} {what}" for what, number in count.items())
        + (f" ({reasons[name]})" if name in reasons else "")
        for name, count in counts.items()
    ]
    line = "; ".join(f"{name} {what or 'none'}" for name, what in zip(counts, said, strict=True))
    terminalreporter.write_line(f"sandbox contract: {line}")
