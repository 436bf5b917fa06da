"""Small forms inside of Dockerfile instructions. Law: pure; what is malformed is a `WordError`, to which the caller
adds the line."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from muster.sandbox.dockerfile.words import WordError
from muster.types import HealthCheck

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s|us|ns)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_INTERVAL_S = 30.0  # Docker's own default


def array(text: str) -> list[str] | None:
    """The words of a JSON array of strings; None for anything else, which then is the shell form (as in Docker)."""
    if not text.startswith("["):
        return None
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    words = cast(list[object], value) if isinstance(value, list) else None
    return None if words is None or not all(isinstance(w, str) for w in words) else [str(w) for w in words]


def absolute(workdir: str, path: str) -> str:
    """`path` from the root, without . and .., keeping a trailing slash; `..` stops at the root."""
    joined = path if path.startswith("/") else f"{workdir.rstrip('/')}/{path}"
    parts: list[str] = []
    for part in joined.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    is_directory = path.endswith(("/", "/.", "/..")) or path in (".", "..")
    return "/" + "/".join(parts) + ("/" if is_directory and parts else "")


def health(text: str, flags: Iterable[tuple[str, str]]) -> HealthCheck | None:
    """Parse what follows HEALTHCHECK. None: NONE, which takes away that of the base.

    Example: `health("CMD curl -f localhost", [("interval", "5s")])`
    """
    kind, _, command = text.partition(" ")
    if kind.upper() == "NONE":
        return None
    if kind.upper() != "CMD" or not command.strip():
        raise WordError("write HEALTHCHECK CMD command, or HEALTHCHECK NONE")
    words = array(command.strip())
    check = HealthCheck(command=shlex.join(words) if words else command.strip(), interval_s=_INTERVAL_S)
    for flag, value in flags:
        match flag:
            case "interval":
                check = replace(check, interval_s=duration_s(value))
            case "timeout":
                check = replace(check, timeout_s=duration_s(value))
            case "start-period":
                check = replace(check, start_period_s=duration_s(value))
            case "retries" if value.isdigit():
                check = replace(check, retries=int(value))
            case "start-interval":
                pass  # ours begins with short intervals in any case
            case _:
                raise WordError(f"--{flag}={value} is unknown")
    return check


def duration_s(text: str) -> float:
    """Seconds of a duration such as 1m30s or 500ms."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise WordError(f"{text!r} is no duration, such as 30s or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
