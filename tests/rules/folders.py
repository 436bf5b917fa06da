"""No folder of more than 24 modules, and no prefix that three modules of one folder share: it is a folder."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from rules.tree import Tree

MODULES = 24
ALIKE = 3


def problems(tree: Tree) -> Iterator[str]:
    found: defaultdict[Path, list[str]] = defaultdict(list)
    for module in tree.modules("src"):
        if module.path.stem != "__init__":
            found[module.path.parent].append(module.path.stem)
    for folder, names in found.items():
        if len(names) > MODULES:
            yield f"{folder}: {len(names)} modules, the limit is {MODULES}: give it folders"
        prefixes = Counter(name.split("_")[0] for name in names if not name.startswith("_") and "_" in name)
        for prefix, count in prefixes.items():
            if count >= ALIKE:
                yield f"{folder}: {count} modules begin with {prefix}_: make it the folder {prefix}/"
