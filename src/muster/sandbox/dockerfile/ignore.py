"""The .dockerignore file. Law: pure; the last pattern that matches a path, or a directory above it, decides.

    node_modules     *.log     **/cache     !keep.log

Patterns are relative to the build context: * and ? stay within one component, ** spans any number, [] is a set, a
leading ! brings back.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath


class Ignore:
    """Patterns of a .dockerignore file.

    Example: `Ignore("*.log\\n!keep.log")(PurePosixPath("/a.log"))` is True.
    """

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self._rules = [
            (line.startswith("!"), re.compile(_pattern(line.removeprefix("!").strip())))
            for line in lines
            if line and not line.startswith("#") and line.removeprefix("!").strip("/. ")
        ]

    @property
    def final(self) -> bool:
        """Nothing below a directory that is left out can come back."""
        return not any(brings_back for brings_back, _ in self._rules)

    def __call__(self, path: PurePosixPath) -> bool:
        """Whether the file at `path` (from the root of the context) is left out."""
        names = [str(p).lstrip("/") for p in (path, *path.parents)][:-1]
        ignored = False
        for brings_back, pattern in self._rules:
            if any(pattern.fullmatch(name) for name in names):
                ignored = not brings_back
        return ignored


def _pattern(text: str) -> str:
    """As a regular expression over a relative path."""
    parts = [p for p in text.split("/") if p and p != "."]
    result = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            result += ".*" if last else "(?:.*/)?"
            continue
        result += _component(part) + ("" if last else "/")
    return result


def _component(part: str) -> str:
    result, position = "", 0
    while position < len(part):
        char = part[position]
        end = part.find("]", position + 2) if char == "[" else -1
        if char == "*":
            spans = part[position : position + 2] == "**"
            result += ".*" if spans else "[^/]*"
            position += spans
        elif char == "?":
            result += "[^/]"
        elif end > 0:
            result += part[position : end + 1].replace("\\", "\\\\")
            position = end
        elif char == "\\" and position + 1 < len(part):
            position += 1
            result += re.escape(part[position])
        else:
            result += re.escape(char)
        position += 1
    return result
