"""Is this observation the recorded one? Law: pure; what may differ between two honest runs is named here, with why.

recorded, again ─► EXACT │ SAME (after times, process ids and scratch paths are masked) │ DIFFERENT
"""

from __future__ import annotations

import re
from enum import StrEnum

_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_DAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"

# Order matters: whole dates before the times in them.
_MASKS = tuple(
    (re.compile(pattern), mask)
    for pattern, mask in (
        # ISO 8601, ls --full-time
        (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([.,]\d+)?( ?(Z|[+-]\d\d:?\d\d))?", "<time>"),
        # date, git, mail
        (rf"\b({_DAYS}),? (\d\d? )?({_MONTHS})( +\d\d?)?,? .{{0,30}}?\b\d{{4}}\b( \d\d:\d\d:\d\d)?( GMT)?", "<time>"),
        (rf"\b({_MONTHS}) +\d\d? +(\d\d:\d\d(:\d\d)?|\d{{4}})\b", "<time>"),  # ls -l, syslog
        (r"\b\d{4}-\d\d-\d\d\b", "<time>"),
        (r"\b\d\d?:\d\d:\d\d([.,]\d+)?\b", "<time>"),
        (r"\b1[5-9]\d{8}(\.\d+)?\b", "<time>"),  # seconds since 1970, from 2017 on
        (r"\b\d+m\d+(\.\d+)?s\b", "<duration>"),  # bash's time
        (r"\b\d+(\.\d+)? ?(ns|µs|us|ms|s|sec|secs|seconds|minutes)\b", "<duration>"),
        (r"^(\[\d+\]) \d+$", r"\1 <pid>"),  # a job in the background
        (r"(?i)\b(p?pid|process|tid)(s?[ :=#]+)\d+", r"\1\2<pid>"),
        (r"/proc/\d+", "/proc/<pid>"),
        (r"\((\d{2,7})\)(?= )", "(<pid>)"),  # pstree -p, systemd-like messages
        (r"/tmp/(tmp|tmp\.)[A-Za-z0-9_]{6,12}\b", "/tmp/<name>"),  # mktemp, Python's tempfile
        (r"\b0x[0-9a-fA-F]{6,16}\b", "<address>"),  # Python's repr
        (r"line \d+: +\d+ (?=Killed|Terminated|Segmentation|Aborted)", "line <n>: <pid> "),  # bash about a child
    )
)


class Sameness(StrEnum):
    """Sameness of two observations."""

    EXACT = "exact"
    SAME = "same"  # but for times, process ids, addresses and scratch paths
    DIFFERENT = "different"


def normalised(text: str) -> str:
    """`text` with what differs from run to run masked.

    Example: `normalised("[1] 4711")` gives `"[1] <pid>"`
    """
    lines = text.rstrip().splitlines()
    for pattern, mask in _MASKS:
        lines = [pattern.sub(mask, line) for line in lines]
    return "\n".join(lines)


def compare(recorded: str, again: str) -> Sameness:
    if recorded == again:
        return Sameness.EXACT
    return Sameness.SAME if normalised(recorded) == normalised(again) else Sameness.DIFFERENT
