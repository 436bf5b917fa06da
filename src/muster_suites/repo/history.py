"""A git history as data: written as a `git fast-import` stream, with the names of its objects known beforehand.

Law: fixed author, fixed dates, so that the same history has the same commit ids everywhere; verifiers expect ids that
were computed here.

    History.commit(files, subject) ─► id        stream() ─► environment/history ─RUN git fast-import─► /app/repo

Object names: sha1 over "<kind> <length>\\0" and the content; entries of a tree are sorted with "/" behind directories.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from muster_suites.frame import BASE, Files

Texts = Mapping[str, str]
"""Path -> content of every file of a commit."""

AUTHOR: Final = "Dev <dev@example.org>"
_FIRST_S: Final = 1_704_100_000
_STEP_S: Final = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    id: str
    tree: str
    files: Texts
    message: str
    parents: tuple[str, ...]
    when_s: int

    @property
    def subject(self) -> str:
        return self.message.split("\n", 1)[0]


class History:
    """Commits in the order in which they were made.

    Example: `tip = history.commit({"a.txt": "x\\n"}, "Add a", parents=[base]); history.branches["main"] = tip`
    """

    def __init__(self) -> None:
        self.commits: Final[dict[str, Commit]] = {}
        self.branches: Final[dict[str, str]] = {}
        self.tags: Final[dict[str, str]] = {}

    def commit(self, files: Texts, message: str, parents: Sequence[str] = ()) -> str:
        """Returns its id."""
        when_s = _FIRST_S + _STEP_S * len(self.commits)
        tree = tree_id(files)
        header = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
        header += [f"{role} {AUTHOR} {when_s} +0000" for role in ("author", "committer")]
        name = _object_id("commit", "\n".join([*header, "", f"{message}\n"]).encode()).hex()
        self.commits[name] = Commit(
            id=name, tree=tree, files=dict(files), message=message, parents=tuple(parents), when_s=when_s
        )
        return name

    def line(self, name: str) -> list[Commit]:
        """A commit and its first parents, newest first."""
        found = [self.commits[name]]
        while found[-1].parents:
            found.append(self.commits[found[-1].parents[0]])
        return found

    def stream(self) -> str:
        """Input of `git fast-import`."""
        marks = {name: index for index, name in enumerate(self.commits, 1)}
        out: list[str] = []
        for name, commit in self.commits.items():
            out += [f"reset refs/build/{marks[name]}", f"commit refs/build/{marks[name]}", f"mark :{marks[name]}"]
            out += [f"{role} {AUTHOR} {commit.when_s} +0000" for role in ("author", "committer")]
            out.append(_data(f"{commit.message}\n"))
            out += [f"{'merge' if i else 'from'} :{marks[parent]}" for i, parent in enumerate(commit.parents)]
            out.append("deleteall")
            for path, text in sorted(commit.files.items()):
                out += [f"M 100644 inline {path}", _data(text)]
        refs = {f"refs/heads/{name}": tip for name, tip in self.branches.items()}
        refs |= {f"refs/tags/{name}": tip for name, tip in self.tags.items()}
        for ref, tip in refs.items():
            out += [f"reset {ref}", f"from :{marks[tip]}", ""]
        return "\n".join([*out, "done", ""])

    def files(self, *, head: str = "main", extra: str = "") -> Files:
        """Files for `DOCKERFILE`: the stream, and a script that makes the repository; `extra` runs at its end."""
        return {"history": self.stream(), "setup.sh": _SETUP.replace("HEAD_BRANCH", head) + extra}


DOCKERFILE: Final = (
    BASE + "WORKDIR /app/repo\nCOPY history setup.sh /opt/task/\nRUN bash /opt/task/setup.sh && rm -r /opt/task\n"
)

_SETUP: Final = """\
set -e
git init -q -b HEAD_BRANCH .
git config user.name Dev
git config user.email dev@example.org
git config gc.auto 0
git fast-import --quiet --done < /opt/task/history
git for-each-ref --format='delete %(refname)' refs/build | git update-ref --stdin
git checkout -q -f HEAD_BRANCH
"""


def written(files: Texts) -> str:
    """Bash source that writes these files, for solutions."""
    parts: list[str] = []
    for path, text in files.items():
        folder = path.rpartition("/")[0]
        parts.append((f"mkdir -p {folder}\n" if folder else "") + f"cat > {path} <<'END_OF_FILE'\n{text}END_OF_FILE\n")
    return "".join(parts)


def tree_id(files: Texts) -> str:
    return _tree(files).hex()


def _tree(files: Texts) -> bytes:
    below: dict[str, dict[str, str]] = {}
    entries: list[tuple[bytes, bytes]] = []
    for path, text in files.items():
        name, slash, rest = path.partition("/")
        if slash:
            below.setdefault(name, {})[rest] = text
        else:
            entries.append((name.encode(), b"100644 " + name.encode() + b"\0" + _object_id("blob", text.encode())))
    for name, inner in below.items():
        entries.append((f"{name}/".encode(), b"40000 " + name.encode() + b"\0" + _tree(inner)))
    return _object_id("tree", b"".join(entry for _, entry in sorted(entries)))


def _object_id(kind: str, content: bytes) -> bytes:
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content).digest()


def _data(text: str) -> str:
    return f"data {len(text.encode())}\n{text}"
