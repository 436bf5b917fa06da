"""Rules about the tree itself, for `make check`: each is a module in `rules/`, with a test that shows that it bites."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from muster.config import RunConfig
from rules import configured, docstrings, folders, mirror, names, options, patching, purity, records, size, strictness
from rules.tree import Tree

ROOT = Path(__file__).parent.parent
RULES = (configured, docstrings, folders, mirror, names, patching, purity, records, size, strictness)
HEAVY = ("torch", "transformers", "matplotlib")
"""Packages that an import of Muster alone must not load."""


def main() -> int:
    tree = Tree(ROOT)
    problems = [problem for rule in RULES for problem in rule.problems(tree)]
    problems += options.problems(RunConfig)
    script = f"import sys, muster; print([m for m in {HEAVY} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    problems += [f"import muster loads {loaded}"] if loaded != "[]" else []
    sys.stdout.write("".join(f"{p}\n" for p in problems) or "tree: ok\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
