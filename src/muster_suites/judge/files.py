"""Checks of files. Law: no link is followed and no special file is opened; what cannot be read has failed.

A check is a function of its data (from `expected.json`) that returns problems; none is good.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

CAP_BYTES = 8 * 1024 * 1024


class Refused(Exception):
    """A path that is not what it must be: missing, a link, a pipe, too large."""


def read(path: str, cap_bytes: int = CAP_BYTES) -> bytes:
    """The content of a regular file, no part of whose path is a link. Raises `Refused`."""
    try:
        with os.fdopen(_open(path), "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode) or state.st_size > cap_bytes:
                raise Refused(f"{path}: not a regular file of at most {cap_bytes} bytes")
            return file.read(cap_bytes)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None


def _open(path: str) -> int:
    directory = os.open("/", os.O_PATH | os.O_DIRECTORY)
    parts = [part for part in path.split("/") if part]
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            os.close(directory)
            directory = inner
        return os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=directory)
    finally:
        os.close(directory)


def text(path: str) -> str:
    """Raises `Refused`."""
    try:
        return read(path).decode()
    except UnicodeDecodeError:
        raise Refused(f"{path}: not UTF-8") from None


def describe(root: str, most: int = 20_000) -> dict[str, dict[str, Any]]:
    """What stands below `root`, by relative path: type, mode, size, link target. Raises `Refused`."""
    if os.path.realpath(root) != root:
        raise Refused(f"{root}: reached through a link")
    found: dict[str, dict[str, Any]] = {}
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            entries = list(os.scandir(f"{root}/{below}"))
        except OSError as error:
            raise Refused(f"{root}/{below}: {error.strerror}") from None
        for entry in entries:
            path = f"{below}/{entry.name}".lstrip("/")
            state = entry.stat(follow_symlinks=False)
            kind = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}.get(stat.S_IFMT(state.st_mode))
            found[path] = {"type": kind or "special", "mode": f"{stat.S_IMODE(state.st_mode):o}", "inode": state.st_ino}
            if kind == "link":
                found[path]["target"] = os.readlink(entry.path)  # noqa: PTH115
            if kind == "dir":
                pending.append(path)
            if len(found) > most:
                raise Refused(f"{root}: more than {most} entries")
    return found


def check_tree(
    root: str, entries: dict[str, dict[str, Any]], exact: bool = True, ignore: tuple[str, ...] = ()
) -> list[str]:
    """`entries`: path -> what must hold of `type`, `sha256` or `text` (its end's blanks aside), `mode`, `target`.

    `exact`: there is nothing else below `root`, what is named in `ignore` aside. Directories that lead to an entry
    need not be listed.
    """
    found = {path: there for path, there in describe(root).items() if not set(path.split("/")) & set(ignore)}
    problems: list[str] = []
    for path, wanted in sorted(entries.items()):
        there = found.get(path)
        if there is None:
            problems.append(f"{root}/{path}: missing")
            continue
        for key in ("type", "mode", "target"):
            if key in wanted and there.get(key) != wanted[key]:
                problems.append(f"{root}/{path}: {key} is {there.get(key)}")
        if "sha256" in wanted and hashlib.sha256(read(f"{root}/{path}")).hexdigest() != wanted["sha256"]:
            problems.append(f"{root}/{path}: other content")
        if "text" in wanted and text(f"{root}/{path}").rstrip() != wanted["text"].rstrip():
            problems.append(f"{root}/{path}: other content")
    if exact:
        known = {*entries, *(str(parent) for path in entries for parent in Path(path).parents)}
        problems += [f"{root}/{path}: should not be there" for path in sorted(set(found) - known)]
    return problems


def check_absent(paths: list[str]) -> list[str]:
    return [f"{path}: still there" for path in paths if os.path.lexists(path)]


def check_lines(path: str, lines: list[str], ordered: bool = True) -> list[str]:
    """The file holds exactly these lines; blanks at line ends and empty lines do not matter."""
    found = [line.rstrip() for line in text(path).splitlines() if line.strip()]
    if found == lines or (not ordered and sorted(found) == sorted(lines)):
        return []
    return [f"{path}: other lines ({len(found)} found, {len(lines)} expected)"]


def check_json(path: str, equals: Any) -> list[str]:
    try:
        found: object = json.loads(text(path))
    except (ValueError, RecursionError):
        return [f"{path}: not JSON"]
    return [] if same(found, equals) else [f"{path}: other value"]


def same(found: object, wanted: object) -> bool:
    """Equal as JSON: true is not 1, and the order of keys does not matter. Never calls code of the agent's."""
    return json.dumps(found, sort_keys=True) == json.dumps(wanted, sort_keys=True)


def check_same_file(root: str, groups: list[list[str]]) -> list[str]:
    """All paths of a group are one file (hard links), and no two groups share one."""
    found = describe(root)
    problems: list[str] = []
    owners: dict[int, int] = {}
    for index, group in enumerate(groups):
        inodes = {found[path]["inode"] if path in found else None for path in group}
        if len(inodes) != 1 or None in inodes:
            problems.append(f"{root}: {', '.join(group)} are not one file")
        for inode in inodes - {None}:
            if owners.setdefault(int(inode or 0), index) != index:
                problems.append(f"{root}: {group[0]} is one file with another content's")
    return problems
