"""Every module says what it is for; every dataclass has slots."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from rules.tree import Tree

UNSLOTTED: Mapping[str, str] = {"EngineWork": "its sums are cached properties"}
"""Dataclass -> why it has no slots."""


def problems(tree: Tree) -> Iterator[str]:
    for module in tree.modules("src"):
        if module.text.strip() and not module.docstring:
            yield f"{module.path}: has no docstring that says what it is for"
        for node in ast.walk(module.syntax):
            if isinstance(node, ast.ClassDef) and node.name not in UNSLOTTED:
                for made in map(ast.unparse, node.decorator_list):
                    if made.split("(")[0].endswith("dataclass") and "slots=True" not in made:
                        yield f"{module.path}:{node.lineno}: {node.name} has no slots"
