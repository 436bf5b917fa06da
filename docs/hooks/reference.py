"""The reference pages, made when the documentation is built: from the configuration models and the command line.

    RunConfig ─► configuration()  ─► reference/configuration.md          (never files in the tree: they cannot go stale)
    typer app ─► commands()       ─► reference/commands.md

Law: no description is written here. What a page lacks is missing in the model or in the command.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Iterable, Iterator
from copy import copy
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.main import get_command

from muster.app.cli import app
from muster.config import RunConfig

if typing.TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files


def pages() -> dict[str, str]:
    """The generated pages by their path in docs/."""
    return {"reference/configuration.md": configuration(), "reference/commands.md": commands()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


# ---------------------------------------------------------------------------------------------------- configuration


def configuration() -> str:
    """Every key of a run's TOML file, section by section."""
    top = [(n, f) for n, f in _fields(RunConfig) if not _models(f.annotation)]
    sections = [(n, f) for n, f in _fields(RunConfig) if _models(f.annotation)]
    lines = [
        "# Configuration",
        "",
        "A run is configured by one TOML file (`muster train -c run.toml`); `--set section.key=value` changes one key. "
        "An unknown key is an error that names the nearest valid one. `muster train --dry-run` prints everything "
        "resolved. This page is generated from the models that read the file.",
        "",
        *_table("", top),
    ]
    for name, field in sections:
        lines += _section(name, field)
    return "\n".join(lines) + "\n"


def _section(path: str, field: FieldInfo) -> Iterator[str]:
    """One section, or one for each kind that it may be; then the sections inside it."""
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    models = sorted(_models(field.annotation), key=lambda model: type(default) is not model)
    told_apart = len(models) > 1
    for model in models:
        kind = model.model_fields["kind"].default if told_apart else None
        title = f'{path}, kind = "{kind}"' if told_apart else path
        skip = {"kind"} if told_apart else set[str]()
        plain = [(n, f) for n, f in _fields(model) if not _models(f.annotation) and n not in skip]
        inner = [(n, f) for n, f in _fields(model) if _models(f.annotation)]
        anchor = _slug(path if model is models[0] else f"{path}-{kind}")
        yield from ("", f"{'##' if '.' not in path else '###'} {title} {{ #{anchor} }}", "")
        yield from ((_sentence(model), "") if _sentence(model) else ())
        if told_apart and model is models[0]:
            names = ", ".join(f"`{m.model_fields['kind'].default}`" for m in models)
            yield from (f"Kinds: {names}. The first is the default.", "")
        yield from _table(f"{path}.", plain)
        for name, deeper in inner:
            yield from _section(f"{path}.{name}", deeper)


def _table(prefix: str, fields: Iterable[tuple[str, FieldInfo]]) -> Iterator[str]:
    rows = [
        f"| `{prefix}{name}` | {_type(field.annotation)}{_limits(field)} | {_default(field)} "
        f"| {_cell(field.description or '')} |"
        for name, field in fields
    ]
    if rows:
        yield from ("| key | type | default | |", "|---|---|---|---|", *rows)


def _sentence(model: type[BaseModel]) -> str:
    """What the model says of itself, without its example."""
    text = inspect.cleandoc(model.__doc__ or "")
    return re.split(r"\n\s*\n|\nExample", text)[0].replace("\n", " ")


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Its keys. One that only changes a default is described where it was first defined."""
    for name, field in model.model_fields.items():
        bases = [base.model_fields[name] for base in model.__mro__[1:] if name in getattr(base, "model_fields", {})]
        shown = copy(field)
        shown.description = next((f.description for f in (field, *bases) if f.description), None)
        yield name, shown


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, Path):
        return f"`{str(value).replace(str(Path.home()), '~')}`"
    return "`" + json.dumps(value, default=_plain, ensure_ascii=False).replace("|", "\\|") + "`"


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return list(value) if isinstance(value, Iterable) else str(value)


def _type(annotation: Any) -> str:
    """A type in words: `int`, `"a" | "b"`, `list of str`."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return _type(args[0])
    if origin is typing.Literal:
        return ", ".join(f"`{json.dumps(a)}`" for a in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(a) for a in args if a is not type(None))
    if origin is dict:
        return "table"
    if origin in (list, tuple, set, frozenset):
        return f"list of {_type(args[0])}" if args else "list"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(f"`{json.dumps(m.value)}`" for m in annotation)
    names = {str: "text", float: "number", int: "whole number", bool: "true or false"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)).lower())


def _limits(field: FieldInfo) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [f"{s} {v:g}" for m in field.metadata for n, s in signs.items() if (v := getattr(m, n, None)) is not None]
    return f", {', '.join(found)}" if found else ""


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a field may hold; none for a plain value, or for a table of values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (dict, list, tuple):
        return []
    return [model for part in get_args(annotation) for model in _models(part)]


# --------------------------------------------------------------------------------------------------------- commands


def commands() -> str:
    """Every command with its arguments and options."""
    lines = ["# Commands", "", "Generated from the command line itself: `muster COMMAND --help` says the same.", ""]
    for path, command in walk(get_command(app), "muster"):
        if not hasattr(command, "commands"):
            lines += _command(path, command)
    return "\n".join(lines) + "\n"


def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The command and all below it, with the words that call it."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from walk(inner, f"{path} {name}")


def _command(path: str, command: Any) -> Iterator[str]:
    yield from (f"## {path} {{ #{_slug(path.removeprefix('muster '))} }}", "", inspect.cleandoc(command.help or ""), "")
    rows = [_parameter(p) for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    if rows:
        yield from ("| argument or option | default | |", "|---|---|---|", *rows, "")
    if command.epilog:
        examples = re.sub(r"^Examples?:\s*", "", command.epilog)
        yield from ("```console", *(f"$ {line.strip()}" for line in examples.split("·")), "```", "")


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        many = " …" if parameter.nargs == -1 else ""
        names = f"`{parameter.metavar or parameter.name.upper()}{many}`"
        return f"| {names} | {'required' if parameter.required else ''} | {_cell(parameter.help or '')} |"
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    value = parameter.default
    shown = "" if parameter.is_flag or value is None or callable(value) else f"`{value}`"
    return f"| {names} | {shown} | {_cell(parameter.help or '')} |"


def _cell(text: str) -> str:
    """Text in a table: no bar ends the cell, and <time> is no tag."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
