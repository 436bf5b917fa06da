"""A docstring opens with a noun or a verb, so that who greps for the thing finds it: not with What, Who or How."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rules.tree import Tree

QUESTIONS = frozenset({"How", "What", "When", "Where", "Which", "Who", "Whose", "Why"})
COPIED = (
    "src/muster_suites/api/client.py",
    "src/muster_suites/api/records/",
    "src/muster_suites/judge/",
    "src/muster_suites/service/check.py",
    "src/muster_suites/service/http.py",
    "src/muster_suites/service/store.py",
    "src/muster_suites/website/client.py",
    "src/muster_suites/website/shop/",
)
"""Files that are copied into generated tasks: another byte would make another task."""

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def problems(tree: Tree) -> Iterator[str]:
    for module in tree.modules("src"):
        if module.path.as_posix().startswith(COPIED):
            continue
        for node in ast.walk(module.syntax):
            docstring = ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None
            word = first_word(docstring or "")
            if word in QUESTIONS:
                yield f"{module.path}:{getattr(node, 'lineno', 1)}: a docstring opens with {word}: name the thing first"


def first_word(docstring: str) -> str:
    words = docstring.split(maxsplit=1)
    return words[0].strip("`*_.,:;?!") if words else ""
