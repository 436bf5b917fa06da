"""Purity: what calls itself pure decides and does nothing, no `async`, and nothing imported that acts or waits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from rules.tree import Tree

_SAYS_SO = re.compile(r"(?:Law: pure|\. Pure)\b")
_ACTING = ("asyncio", "muster.clock", "os", "shutil", "socket", "sqlite3", "subprocess", "tempfile", "threading")


def problems(tree: Tree) -> Iterator[str]:
    for module in tree.modules("src"):
        if not _SAYS_SO.search(module.docstring):
            continue
        for name in module.imported.values():
            if any(name == acting or name.startswith(acting + ".") for acting in _ACTING):
                yield f"{module.path}: calls itself pure and imports {name}"
        for node in ast.walk(module.syntax):
            if isinstance(node, ast.AsyncFunctionDef):
                yield f"{module.path}:{node.lineno}: calls itself pure, and {node.name} is async"
