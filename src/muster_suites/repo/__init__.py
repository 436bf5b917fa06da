"""The repo suite: small git repositories to repair, complete, merge, search and rewrite. What is left decides."""

from __future__ import annotations

from typing import Final

from muster_suites.frame import Family
from muster_suites.repo import (
    bisect,
    changelog,
    cherry_pick,
    fix_bug,
    implement,
    merge_conflict,
    purge_secret,
    recover_commit,
    rename_symbol,
)

CODE: Final[tuple[Family, ...]] = (fix_bug.FAMILY, implement.FAMILY, rename_symbol.FAMILY, bisect.FAMILY)
GIT: Final[tuple[Family, ...]] = (
    merge_conflict.FAMILY,
    recover_commit.FAMILY,
    purge_secret.FAMILY,
    cherry_pick.FAMILY,
    changelog.FAMILY,
)
REPO: Final[tuple[Family, ...]] = CODE + GIT
