"""A configuration model stands in `config.py` of its part: every option of a part is read in one place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel


def problems(root: type[BaseModel]) -> Iterator[str]:
    for model in sorted(_reachable(root), key=lambda m: (m.__module__, m.__name__)):
        if model.__module__.split(".")[-1] != "config":
            yield f"{model.__module__}: {model.__name__} is part of {root.__name__}: move it to config.py of its part"


def _reachable(root: type[BaseModel]) -> set[type[BaseModel]]:
    found: set[type[BaseModel]] = set()
    waiting = [root]
    while waiting:
        model = waiting.pop()
        if model not in found:
            found.add(model)
            waiting += [inner for field in model.model_fields.values() for inner in _models_in(field.annotation)]
    return found


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a field may hold: itself, or those of a union, however it is annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
