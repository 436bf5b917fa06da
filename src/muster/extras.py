"""Extras: optional dependencies of the distribution, and which of them brings a module that is missing.

Law: the distribution's own metadata says what an extra holds; no table repeats it.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence

DISTRIBUTION = "muster-rl"


def extra_names(extra: str, requirements: Sequence[str]) -> list[str]:
    """Names of the packages that an extra adds."""
    marker = re.compile(rf"extra == ['\"]{re.escape(extra)}['\"]")
    return [re.split(r"[^\w.-]", r, maxsplit=1)[0] for r in requirements if marker.search(r)]


def install(extra: str) -> str:
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def remedy(error: ModuleNotFoundError) -> str | None:
    """Advice for a module that is missing; None if no extra brings it.

    Example: `"torch is missing: pip install 'muster-rl[train]'"`
    """
    missing = (error.name or "").partition(".")[0]
    requirements = importlib.metadata.requires(DISTRIBUTION) or []
    for extra in ("train", "docker", "vllm"):
        if missing in extra_names(extra, requirements):
            return f"{missing} is missing: {install(extra)}"
    return None
