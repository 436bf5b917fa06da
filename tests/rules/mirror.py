"""Tests mirror the tree: whoever changes a part knows where its tests are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rules.tree import Tree

FOLDERS = {
    "contract": "what every adapter of a port must do",
    "rules": "the rules about the tree",
    "suites": "the package muster_suites",
}
"""Folders of tests that are no package of `muster`, and what they test."""
FILES = {
    "test_door": "import muster, and the changelog",
    "test_pages": "the pages under docs and the README",
    "test_examples": "the scripts under examples",
}
"""The same for files beside these folders."""


def problems(tree: Tree) -> Iterator[str]:
    ours = tree.root / "src/muster"
    for module in tree.modules("tests"):
        path = module.path.relative_to("tests")
        if not module.is_test:
            continue
        if path.parent == Path():
            name = path.stem.removeprefix("test_")
            if path.stem not in FILES and not (ours / f"{name}.py").exists() and not (ours / name).is_dir():
                yield f"{module.path}: tests no module src/muster/{name}.py: put it beside the tests of what it tests"
        elif path.parts[0] not in FOLDERS and not (ours / path.parent).is_dir():
            yield f"{module.path}: src/muster/{path.parent} does not exist: tests lie where what they test lies"
