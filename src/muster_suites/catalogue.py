"""Catalogue of the families of each suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from muster_suites.api import API
from muster_suites.frame import Family
from muster_suites.repo import REPO
from muster_suites.starter import STARTER
from muster_suites.terminal import TERMINAL
from muster_suites.website import WEBSITE

SUITES: Final[Mapping[str, tuple[Family, ...]]] = {
    "starter": STARTER,
    "terminal": TERMINAL,
    "repo": REPO,
    "website": WEBSITE,
    "api": API,
}
