"""No file over 500 lines, no function over 50."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rules.tree import Tree

FILE_LINES = 500
FUNCTION_LINES = 50


def problems(tree: Tree) -> Iterator[str]:
    for module in tree.modules("src", "tests", "examples"):
        lines = len(module.text.splitlines())
        if lines > FILE_LINES:
            yield f"{module.path}: {lines} lines, the limit is {FILE_LINES}"
        for node in ast.walk(module.syntax):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES:
                    yield f"{module.path}:{node.lineno}: {node.name} has {lines} lines, the limit is {FUNCTION_LINES}"
