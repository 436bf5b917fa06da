"""Which families a suite has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from muster.tasks.suites.api import API
from muster.tasks.suites.frame import Family
from muster.tasks.suites.repo import REPO
from muster.tasks.suites.terminal import TERMINAL
from muster.tasks.suites.website import WEBSITE

SUITES: Final[Mapping[str, tuple[Family, ...]]] = {"terminal": TERMINAL, "repo": REPO, "website": WEBSITE, "api": API}
