"""Checks of a git repository. Law: git reads a copy of the objects and refs under a configuration of its own; no
hook, filter, alias, replacement, graft or worktree setting of the agent's takes part.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

from muster_suites.judge.code import Scratch, copy_files, run_as_guest
from muster_suites.judge.files import Refused, describe, read

CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n"


class Repository:
    """The objects and refs of a repository, copied. Git runs as the guest on the copy."""

    def __init__(self, source: str, place: Path) -> None:
        git = f"{source}/.git"
        describe(git)  # refuses a link or a file in its place
        for part in ("objects", "refs"):
            (place / part).mkdir()
            copy_files(f"{git}/{part}", place / part, most=20_000)
        shutil.rmtree(place / "objects" / "info", ignore_errors=True)  # it may name objects elsewhere
        for name in ("packed-refs", "HEAD"):
            try:
                (place / name).write_bytes(read(f"{git}/{name}"))
            except Refused:
                if name == "HEAD":
                    raise
        (place / "config").write_text(CONFIG)
        self._place = place
        if self._run("fsck", "--full", "--no-dangling", "--no-progress")[0] != 0:
            raise Refused(f"{source}: git fsck finds it broken")  # objects that do not have the content of their name

    def _run(self, *arguments: str, stdin: str = "") -> tuple[int, str]:
        argv = ["/usr/bin/git", "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", "--no-pager"]
        argv += ["--git-dir", str(self._place), *arguments]
        code, printed = run_as_guest(argv, place=self._place, stdin=stdin.encode())
        return code, printed.decode(errors="replace")

    def ask(self, *arguments: str, stdin: str = "") -> str:
        """What git prints; nothing for a ref that is not there."""
        return self._run(*arguments, stdin=stdin)[1]

    def history(self, ref: str) -> list[tuple[str, str, str]]:
        """(commit, tree, subject), newest first, parents after their children."""
        printed = self.ask("log", "--topo-order", "--no-show-signature", "--format=%H%x09%T%x09%s", ref, "--")
        lines = (line.split("\t", 2) for line in printed.splitlines())
        return [(line[0], line[1], line[2]) for line in lines if len(line) == 3]

    def files(self, ref: str) -> dict[str, tuple[str, str]]:
        """Path -> (mode, blob)."""
        found: dict[str, tuple[str, str]] = {}
        for entry in self.ask("ls-tree", "-r", "-z", ref, "--").split("\0"):
            head, _, path = entry.partition("\t")
            if path:
                mode, _, blob = head.split(" ")
                found[path] = (mode, blob)
        return found


def check_git(
    repository: str,
    branches: dict[str, dict[str, Any]],
    head: str | None = None,
    forbidden: list[str] | None = None,
    tags: list[str] | None = None,
) -> list[str]:
    """`branches`: name -> what must hold of its tip.

    commit     it is this commit
    files      its tree holds exactly these paths, with these contents
    contains   these commits are in its history
    log        subjects and, where given, trees of its whole history, newest first
    above      [commit, [subjects]]: what lies above that commit, newest first

    `head`: the branch that is checked out. `forbidden`: texts that no reachable object may hold. `tags`: are there.
    """
    with Scratch() as place:
        repo = Repository(repository, place)
        problems: list[str] = []
        if head is not None and (place / "HEAD").read_text(errors="replace").strip() != f"ref: refs/heads/{head}":
            problems.append(f"{repository}: {head} is not checked out")
        problems += [f"{repository}: no tag {tag}" for tag in tags or () if not repo.history(f"refs/tags/{tag}")]
        for name, wanted in branches.items():
            problems += [f"{repository}: {name}: {problem}" for problem in _branch(repo, name, wanted)]
        if forbidden:
            problems += [f"{repository}: {problem}" for problem in _forbidden(repo, forbidden)]
        return problems


def _branch(repo: Repository, name: str, wanted: dict[str, Any]) -> list[str]:
    ref = f"refs/heads/{name}"
    history = repo.history(ref)
    if not history:
        return ["no such branch"]
    problems: list[str] = []
    commits = [commit for commit, _, _ in history]
    if "commit" in wanted and commits[0] != wanted["commit"]:
        problems.append("is another commit")
    if "files" in wanted and repo.files(ref) != {path: ("100644", blob_id(t)) for path, t in wanted["files"].items()}:
        problems.append("its files are not as expected")
    if set(wanted.get("contains", ())) - set(commits):
        problems.append("commits are missing from its history")
    if "log" in wanted:
        found = [[subject, tree] for _, tree, subject in history]
        if len(found) != len(wanted["log"]) or any(
            have[: len(want)] != want for have, want in zip(found, wanted["log"], strict=True)
        ):
            problems.append("its history is not as expected")
    if "above" in wanted:
        base, subjects = wanted["above"]
        above = [subject for _, _, subject in history[: commits.index(base)]] if base in commits else None
        if above != subjects:
            problems.append(f"its commits above {base[:10]} are not as expected")
    return problems


def _forbidden(repo: Repository, texts: list[str]) -> list[str]:
    """What any ref reaches: file contents, file names and commit messages."""
    listed = repo.ask("rev-list", "--objects", "--all")
    objects = "".join(f"{line.split(' ', 1)[0]}\n" for line in listed.splitlines())
    contents = repo.ask("cat-file", "--batch", stdin=objects)
    found = [f"{text!r} is still in its history" for text in texts if text in listed or text in contents]
    return found if listed else ["no history"]


def blob_id(text: str) -> str:
    data = text.encode()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
