"""Check of a server's interpreter: the packages it has, asked before anything starts.

    engine.python ─► installed: distribution ─► version ─► require ─► nothing, or what to install and which key to set

Law: whoever lacks a server reads one line with the command that mends it, not the server's own traceback. Nothing is
imported: a server takes long to, and some crash.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import Mapping, Sequence
from contextlib import suppress

from muster import clock
from muster.errors import ConfigError

_ASK_S = 60.0
_REAP_S = 2.0
_ASK = """
import sys, json, importlib.metadata as m
found = {}
for name in sys.argv[1:]:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(found))
"""


def interpreter(python: str) -> str:
    """`engine.python`; the one that runs muster when it is empty."""
    return python or sys.executable


async def installed(python: str, distributions: Sequence[str], *, timeout_s: float = _ASK_S) -> dict[str, str]:
    """The versions of those of `distributions` that `python` has. Raises `ConfigError` when it is no interpreter."""
    try:
        process = await asyncio.create_subprocess_exec(python, "-c", _ASK, *distributions, stdout=PIPE, stderr=PIPE)
    except OSError as error:
        raise ConfigError(f"engine.python: {python}: {error.strerror}") from None
    try:
        async with clock.timeout(timeout_s):
            output, errors = await process.communicate()
    except TimeoutError:
        raise ConfigError(f"engine.python: {python} has not answered within {timeout_s:g} s") from None
    finally:
        with suppress(ProcessLookupError, TimeoutError):
            process.kill()
            async with clock.timeout(_REAP_S):
                await process.wait()
    try:
        return dict(json.loads(output))
    except ValueError:
        words = errors.decode(errors="replace").strip()[-200:]
        raise ConfigError(f"engine.python: {python} is no Python interpreter: {words}") from None


def require(found: Mapping[str, str], distribution: str, python: str, *, oldest: tuple[int, ...], install: str) -> None:
    """Raises `ConfigError` when `distribution` is missing or too old.

    found: what `installed` said of `python`. install: the requirement for pip.

    Example: `require({"vllm": "0.9"}, "vllm", "python3", oldest=(0, 32), install="vllm>=0.32")` raises
    """
    mend = f"{python} -m pip install '{install}', or name an interpreter that has it in engine.python"
    if distribution not in found:
        raise ConfigError(f"engine: {python} has no {distribution}: {mend}")
    numbers = tuple(int(digits) for digits in re.findall(r"\d+", found[distribution])[: len(oldest)])
    if numbers < oldest:
        wanted = ".".join(map(str, oldest))
        raise ConfigError(
            f"engine: {python} has {distribution} {found[distribution]}; {wanted} or later is needed: {mend}"
        )
