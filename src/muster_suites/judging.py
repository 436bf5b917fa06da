"""The judge as files of a task: its modules joined into one `check.py`, and what is expected beside it.

Law: the text depends on the judge's source alone. Lines that import from this package are dropped, because what
they name stands above; so the judge has no two things of one name.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from muster_suites.frame import File

ORDER: Final = ("files", "code", "git", "cron", "main")
_INTERNAL: Final = re.compile(
    r"^from (?:__future__|muster_suites\.[\w.]+) import (?:\([^)]*\)|[^\n(]*)\n", re.MULTILINE
)


@cache
def check_source() -> str:
    """The whole of `check.py`."""
    directory = Path(__file__).parent / "judge"
    parts = [_INTERNAL.sub("", (directory / f"{name}.py").read_text(encoding="utf-8")) for name in ORDER]
    return "\n\n".join(["from __future__ import annotations", *parts, "main()\n"])


def judged_by(*checks: dict[str, Any]) -> dict[str, File]:
    """The files of `tests/` for these checks. Example: `judged_by({"check": "absent", "paths": ["/app/a"]})`"""
    expected = json.dumps(checks, indent=1, sort_keys=True)
    texts = {"check.py": check_source(), "expected.json": f"{expected}\n"}
    return {name: File(content=text, mode=0o600) for name, text in texts.items()}


def tree(root: str, files: dict[str, Any], *, exact: bool = True, ignore: tuple[str, ...] = ()) -> dict[str, Any]:
    """The check of a whole directory. A value is a text, None for a directory, or what `files.check_tree` knows."""
    entries = {path: _entry(value) for path, value in files.items()}
    return {"check": "tree", "root": root, "entries": entries, "exact": exact, "ignore": list(ignore)}


def _entry(value: Any) -> dict[str, Any]:
    if value is None:
        return {"type": "dir"}
    return {"type": "file", "text": value} if isinstance(value, str) else value
