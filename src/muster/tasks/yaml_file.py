"""A YAML file that a task author wrote: plain data, with every wrong value named by file and key.

Law: no object is made of it, and of variables only those that the caller passes are known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import yaml

from muster.errors import TaskError

_LOADER: Final = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_VARIABLE: Final = re.compile(r"\$(?:(\$)|(\w+)|\{(\w+)(?::?-([^}]*))?\})")


def load_yaml(path: Path) -> object:
    """Plain data of a YAML file. Raises `TaskError` with the line."""
    try:
        return yaml.load(path.read_bytes(), Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise TaskError(f"{place}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that is none
        raise TaskError(f"{path}: not YAML: {' '.join(str(error).split())}") from None


class YamlFile:
    """One file while it is read. Its methods take what was found and the key that it was found under.

    Example: `file.text(service["image"], "services.main.image")`
    """

    def __init__(self, path: Path, variables: Mapping[str, str]) -> None:
        self.path = path
        self.variables = variables

    def fail(self, key: str, problem: str) -> NoReturn:
        shown = key if key.isprintable() else repr(key)[1:-1]  # an author's key may be anything; a message is one line
        raise TaskError(f"{self.path}: {shown}: {problem}")

    def table(self, found: object, key: str) -> Mapping[str, Any]:
        if not isinstance(found, dict):
            self.fail(key, f"expected a table, found {found!r}")
        return {str(name): value for name, value in cast("dict[object, Any]", found).items()}

    def raw(self, found: object, key: str) -> str:
        """A scalar as it is written."""
        if isinstance(found, bool):
            return str(found).lower()
        if not isinstance(found, str | int | float):
            self.fail(key, f"expected a text, found {found!r}")
        return str(found)

    def text(self, found: object, key: str) -> str:
        """A scalar with `$NAME`, `${NAME}` and `${NAME:-default}` replaced; `$$` is a dollar."""

        def value(match: re.Match[str]) -> str:
            if match[1]:
                return "$"
            name: str = match[2] or match[3]
            default: str | None = match[4]
            known = self.variables.get(name, default)
            if known is None:
                self.fail(key, f"${{{name}}} has no value; pass it, or write ${{{name}:-default}}")
            return known

        return _VARIABLE.sub(value, self.raw(found, key))

    def optional(self, found: object, key: str) -> str | None:
        return None if found is None else self.text(found, key)
