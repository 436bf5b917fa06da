"""Place of the repository of a repo task, and the checks of what is left there."""

from __future__ import annotations

from typing import Any, Final

from muster_suites.judging import tree

REPO: Final = "/app/repo"
UNFINISHED: Final = {
    "check": "absent",
    "paths": [f"{REPO}/.git/{name}" for name in ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge")],
}
"""The check that no merge, pick, revert or rebase is under way."""


def git_state(branches: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The check `git`, which says what may be asked of a branch. Example: `git_state({"main": {"commit": tip}})`"""
    return {"check": "git", "repository": REPO, "branches": branches, **more}


def worktree(files: dict[str, str]) -> dict[str, Any]:
    """The check that the working tree holds exactly these files."""
    return tree(REPO, files, ignore=(".git", "__pycache__"))
