"""Every path and module that pyproject.toml names is there: a check of what is gone checks nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rules.tree import Tree


def problems(tree: Tree) -> Iterator[str]:
    for key, path in _paths(tree.configuration):
        if not any(tree.root.glob(path)):
            yield f"pyproject.toml: {key} names {path}, which does not exist"
    for key, module in _modules(tree.configuration):
        path = tree.root / "src" / module.replace(".", "/")
        if not path.is_dir() and not path.with_name(path.name + ".py").exists():
            yield f"pyproject.toml: {key} names {module}, which does not exist"


def _paths(configuration: dict[str, Any]) -> Iterator[tuple[str, str]]:
    project, tool = configuration.get("project", {}), configuration.get("tool", {})
    named = {
        "project.license-files": project.get("license-files", ()),
        "project.readme": [project["readme"]] if "readme" in project else (),
        "tool.basedpyright.include": tool.get("basedpyright", {}).get("include", ()),
        "tool.basedpyright.strict": tool.get("basedpyright", {}).get("strict", ()),
        "tool.basedpyright.exclude": tool.get("basedpyright", {}).get("exclude", ()),
        "tool.basedpyright.ignore": tool.get("basedpyright", {}).get("ignore", ()),
        "tool.hatch packages": _at(tool, "hatch", "build", "targets", "wheel").get("packages", ()),
        "tool.pytest testpaths": _at(tool, "pytest", "ini_options").get("testpaths", ()),
        "tool.pytest pythonpath": _at(tool, "pytest", "ini_options").get("pythonpath", ()),
        "tool.ruff.src": tool.get("ruff", {}).get("src", ()),
        "tool.ruff per-file-ignores": _at(tool, "ruff", "lint").get("per-file-ignores", {}),
    }
    return ((key, path) for key, paths in named.items() for path in paths)


def _modules(configuration: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Ours alone: what a contract forbids of others need not be installed."""
    for command, target in configuration.get("project", {}).get("scripts", {}).items():
        yield f"project.scripts.{command}", target.partition(":")[0]
    linter = _at(configuration.get("tool", {}), "importlinter")
    roots = linter.get("root_packages", ())
    yield from (("tool.importlinter.root_packages", root) for root in roots)
    for contract in linter.get("contracts", ()):
        layers = [name.strip() for layer in contract.get("layers", ()) for name in layer.split("|")]
        names: Iterable[str] = (
            *contract.get("containers", ()),
            *(f"{container}.{layer}" for container in contract.get("containers", ()) for layer in layers),
            *contract.get("source_modules", ()),
            *(m for m in contract.get("forbidden_modules", ()) if m.split(".")[0] in roots),
        )
        yield from ((f"the contract {contract['name']!r}", name) for name in names)


def _at(table: dict[str, Any], *keys: str) -> dict[str, Any]:
    for key in keys:
        table = table.get(key, {})
    return table
