"""Types are strict, and a rule is relaxed only where somebody else's types are missing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rules.tree import Tree

UNTYPED = ("fsspec", "gguf", "matplotlib", "safetensors", "tokenizers", "torch", "transformers", "vllm")
"""Packages whose types are missing or full of holes."""

_OF_A_FILE = re.compile(r"^# pyright: ", re.MULTILINE)
_OF_A_LINE = re.compile(r"# (?:type|pyright): ignore(?!\[)")


def problems(tree: Tree) -> Iterator[str]:
    if tree.configuration.get("tool", {}).get("basedpyright", {}).get("typeCheckingMode") != "strict":
        yield "pyproject.toml: tool.basedpyright.typeCheckingMode is not strict"
    for module in tree.modules("src"):
        packages = {name.split(".")[0] for name in module.imported.values()}
        if _OF_A_FILE.search(module.text) and not packages & set(UNTYPED):
            yield f"{module.path}: relaxes types and imports none of {', '.join(UNTYPED)}"
        for number, line in enumerate(module.text.splitlines(), 1):
            if _OF_A_LINE.search(line):
                yield f"{module.path}:{number}: ignores every rule: name the one, as in `# pyright: ignore[rule]`"
