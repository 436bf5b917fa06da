"""One name for one thing: a public class name of `muster` is defined in one folder, or stands here with a reason.

The suites are apart: the programs in them are what tasks are made of, and no part of the house.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from rules.tree import Tree

ALIKE: Mapping[str, str] = {}
"""Class name -> why two folders define it."""


def problems(tree: Tree, alike: Mapping[str, str] = ALIKE) -> Iterator[str]:
    found: defaultdict[str, dict[Path, Path]] = defaultdict(dict)  # name -> folder -> one file of it
    for module in tree.modules("src/muster"):
        for node in module.syntax.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name][module.path.parent] = module.path
    twice = {name: sorted(places.values()) for name, places in found.items() if len(places) > 1}
    for name, paths in sorted(twice.items()):
        if name not in alike:
            yield f"class {name} is defined in {' and '.join(map(str, paths))}: rename all but one"
    for name in sorted(set(alike) - set(twice)):
        yield f"class {name} is defined once: take it out of {__name__}.ALIKE"
