"""Reading a reward from the files of a verifier. Law: pure; a finite number, or the reason why there is none.

    reward.json (a number, or an object of numbers) ─ if present ─► reward, or a problem
    reward.txt  (one number)                        ─ else ───────► reward, or a problem

Of an object, the value of "reward" counts if it has one, else the mean of all values (several criteria).
Task format: Harbor. There the exit code of the script is ignored, and so it is here.
"""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import cast


class Problem(StrEnum):
    """Problem because of which a run of the verifier gave no reward."""

    MISSING = "missing"  # neither file is there
    EMPTY = "empty"
    NOT_NUMERIC = "not_numeric"
    NOT_FINITE = "not_finite"
    NOT_A_FILE = "not_a_file"  # a link, a pipe, a directory, or too large
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"  # its sandbox was destroyed from within
    NOT_STARTED = "not_started"  # no sandbox starts on this state
    INTERRUPTED = "interrupted"  # its sandbox was lost with no sign of anyone's doing inside
    UNSCORABLE = "unscorable"  # the scorer says that it cannot tell


def parse(json_file: bytes | None, text_file: bytes | None) -> float | Problem:
    """The reward from the content of both files; None for one that is not there."""
    if json_file is not None:
        return _from_json(json_file)
    if text_file is not None:
        return _from_text(text_file)
    return Problem.MISSING


def criteria(json_file: bytes | None) -> dict[str, float]:
    """The members of an object that `parse` gives a reward for; empty for anything else."""
    if json_file is None or isinstance(_from_json(json_file), Problem):
        return {}
    value: object = json.loads(json_file)
    return {name: float(it) for name, it in cast(dict[str, float], value).items()} if isinstance(value, dict) else {}


def _from_json(content: bytes) -> float | Problem:
    if not content.strip():
        return Problem.EMPTY
    try:
        value: object = json.loads(content)
    except (ValueError, RecursionError):
        return Problem.NOT_NUMERIC
    if isinstance(value, dict):
        criteria = cast(dict[str, object], value)
        numbers = [_number(v) for v in criteria.values()]
        problem = next((n for n in numbers if isinstance(n, Problem)), None)
        if problem is not None or not numbers:
            return problem or Problem.NOT_NUMERIC
        if "reward" in criteria:
            return _number(criteria["reward"])
        return _number(sum(n for n in numbers if not isinstance(n, Problem)) / len(numbers))
    return _number(value)


def _from_text(content: bytes) -> float | Problem:
    text = content.decode(errors="replace").strip()
    if not text:
        return Problem.EMPTY
    try:
        return _number(float(text))
    except ValueError:
        return Problem.NOT_NUMERIC


def _number(value: object) -> float | Problem:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Problem.NOT_NUMERIC
    try:
        number = float(value)
    except OverflowError:
        return Problem.NOT_FINITE
    return number if math.isfinite(number) else Problem.NOT_FINITE
