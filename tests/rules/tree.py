"""The tree that the rules look at: Python files, parsed once, and pyproject.toml."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Module:
    """One file. `path` is relative to the root."""

    path: Path
    text: str

    @cached_property
    def syntax(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def docstring(self) -> str:
        return ast.get_docstring(self.syntax) or ""

    @cached_property
    def imported(self) -> dict[str, str]:
        """Name in this file -> what it stands for, in full."""
        names: dict[str, str] = {}
        for node in ast.walk(self.syntax):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.split(".")[0]
                    names[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom):
                names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        return names

    @property
    def is_test(self) -> bool:
        return self.path.name.startswith("test_")


class Tree:
    """Example: `Tree(root).modules("src")`"""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._parsed: dict[Path, Module] = {}

    def modules(self, *folders: str) -> Iterator[Module]:
        """Every Python file under these folders, in order."""
        for folder in folders:
            for path in sorted((self.root / folder).rglob("*.py")):
                if path not in self._parsed:
                    self._parsed[path] = Module(path.relative_to(self.root), path.read_text(encoding="utf-8"))
                yield self._parsed[path]

    @cached_property
    def configuration(self) -> dict[str, Any]:
        return tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
