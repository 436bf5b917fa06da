"""Named servers, and how they are read and written.

Law: a preset is an `EmulatedEngineConfig` in TOML. The built-in ones lie in `presets.toml`, with the source of every
number; a file of yours holds one, as `muster engine calibrate` writes it.
"""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from muster.engine.config import EmulatedEngineConfig
from muster.errors import ConfigError

_BUILT_IN = Path(__file__).with_name("presets.toml")


def names() -> tuple[str, ...]:
    """The built-in presets."""
    return tuple(_read(_BUILT_IN))


def preset(name: str) -> EmulatedEngineConfig:
    """The built-in preset of that name, or the one in the file `name` (ending in .toml).

    Raises `ConfigError` naming what is wrong. Example: `preset("h100-llama-8b")`
    """
    if name.endswith(".toml"):
        return _parsed(_read(Path(name)), name)
    tables = _read(_BUILT_IN)
    if name not in tables:
        near = difflib.get_close_matches(name, tables, n=1)
        hint = f"did you mean {near[0]!r}" if near else f"there are {', '.join(tables)}"
        raise ConfigError(f"preset {name!r}: no such preset; {hint}. The name of a file ends in .toml")
    return _parsed(tables[name], f"preset {name}")


def to_toml(config: EmulatedEngineConfig) -> str:
    """A preset file: every field that differs from its default."""
    return tomli_w.dumps(config.model_dump(exclude_defaults=True))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def _parsed(table: dict[str, Any], where: str) -> EmulatedEngineConfig:
    try:
        return EmulatedEngineConfig.model_validate(table)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc'])) or 'preset'}: {e['msg']}" for e in error.errors()[:3]]
        raise ConfigError(f"{where}: {'; '.join(problems)}") from None
