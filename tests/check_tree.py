"""Rules about the tree itself, for `make check`: no file over 500 lines, and an import without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMIT_LINES = 500
ROOT = Path(__file__).parent.parent


def main() -> int:
    long = [
        f"{path.relative_to(ROOT)}: {lines} lines, the limit is {LIMIT_LINES}"
        for folder in ("src", "tests", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LIMIT_LINES
    ]
    script = "import sys, muster; print([m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    problems = [*long, *([f"import muster loads {loaded}"] if loaded != "[]" else [])]
    sys.stdout.write("".join(f"{p}\n" for p in problems) or "tree: ok\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
