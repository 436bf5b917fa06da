"""Tests patch no module and no object of ours: they pass in what they want, or use the fake beside the port.

The process's own surroundings (`setenv`, `chdir`, `sys.argv`) may be set.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from rules.tree import Module, Tree

_PATCHES = ("setattr", "setitem", "delattr", "delitem")


def problems(tree: Tree) -> Iterator[str]:
    for module in tree.modules("tests"):
        for node in ast.walk(module.syntax):
            for target in _patched(node):
                if _root(target, module) not in sys.stdlib_module_names:
                    where, what = f"{module.path}:{target.lineno}", ast.unparse(target)
                    yield f"{where}: patches {what}: pass it in, or use the fake beside the port"


def _patched(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Call(func=ast.Attribute(ast.Name("monkeypatch"), how), args=[target, *_]) if how in _PATCHES:
            yield target
        case _:
            pass


def _root(target: ast.expr, module: Module) -> str:
    """The package that is patched; empty for what no import brought."""
    if isinstance(target, ast.Constant):
        return str(target.value).split(".")[0]
    while isinstance(target, ast.Attribute):
        target = target.value
    return module.imported.get(ast.unparse(target), "").split(".")[0]
