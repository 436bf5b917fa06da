"""Code that a user names in the configuration: `module:name`, such as `verifier.score` and `agent.player`.

Law: it is the user's own, trusted as such, and may still be wrong. What is wrong with it is told before anything
starts, with the key, the value and the fix; what it raises while it is loaded is shown with its place.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.errors import ConfigError


def load(key: str, name: str, *, kind: str, example: str) -> Callable[..., Any]:
    """The object at `module:name`, of an installed module or one in the current directory. Raises `ConfigError`.

    Example: `load("verifier.score", "my_scores:by_length", kind="function", example="my_scores:by_length")`
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{key} = {name!r}: write module:{kind}, such as {example}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: a file here hides no installed module
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # someone else's code: whatever it raises is told in our words
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            message = f"{error}, neither installed nor in {here}; is it on PYTHONPATH?"
        else:
            message = f"{module_name} cannot be imported: {described(error)}"
        raise ConfigError(f"{key} = {name!r}: {message}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise ConfigError(f"{key} = {name!r}: {module_name} has no {kind} {attribute!r}")
    return found


def source_digest(code: Callable[..., Any], name: str) -> str:
    """SHA-256 of the file that defines it; `name` where there is no file. An edit makes it another one."""
    try:
        source = inspect.getsourcefile(code)
    except TypeError:  # made by a call, or in an interactive session
        return name
    return hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else name


def described(error: BaseException) -> str:
    """An exception and its place in the user's code. Example: `KeyError: 'path' at my_agents.py:17`"""
    frames = traceback.extract_tb(error.__traceback__)
    installed = (sys.prefix, sys.base_prefix, "<frozen")
    own = [frame for frame in frames if not frame.filename.startswith(installed)] or frames
    place = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    return f"{type(error).__name__}: {error}{place}"
