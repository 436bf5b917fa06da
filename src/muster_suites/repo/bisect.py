"""Find the commit that broke a function, name it, and undo it without losing what came later."""

from __future__ import annotations

from typing import Any

from muster_suites.frame import Draw, Family, Instance
from muster_suites.judging import judged_by
from muster_suites.repo.history import DOCKERFILE, History, written
from muster_suites.repo.place import REPO, git_state
from muster_suites.repo.subjects import SUBJECTS, Subject, answer, module_source


def _bisect(draw: Draw) -> Instance:
    level = draw.difficulty
    count = draw.at(5, 8, 16, 32, 64)
    subject, bug = draw.choice(_BISECTABLE)
    name = f"{draw.word()}.py"
    bad_at = draw.number(2, count - 2)
    history, notes, ids = History(), "", list[str]()
    files: dict[str, str] = {}
    for index in range(count):
        note = draw.pair()
        notes += f"- {note}\n"
        source = subject.broken(bug) if index >= bad_at else subject.source
        files = {name: module_source([source]), "check.py": _check(subject, name[:-3]), "NOTES.md": notes}
        if level >= 4 and index % 9 == 4 and abs(index - bad_at) > 1 and index < count - 1:
            files[name] = "def\n"  # does not compile; the next commit repairs it
        ids.append(history.commit(files, f"Work on {note}", ids[-1:]))
    history.branches["main"] = ids[-1]
    wishes = [
        f"In the git repository {REPO}, {subject.name} of {name} once worked and is now wrong: `python3 check.py` "
        "prints good at the first commit, and fails now.",
        "Write the full hash of the commit that broke it to /app/answer.txt.",
    ]
    if level >= 3:
        wishes.append(
            f"Then undo what that commit did to {name} by a new commit on main. Keep all commits that are there, and "
            "what they did to other files."
        )
    if level >= 4:
        wishes.append(f"At some commits {name} does not even compile; these are not the ones that are meant.")
    fixed = {**files, name: module_source([subject.source])}
    branch: dict[str, Any] = {"files": fixed, "contains": [ids[-1]]} if level >= 3 else {"commit": ids[-1]}
    undo = f"{written({name: fixed[name]})}git commit -qam 'Undo a change'\n" if level >= 3 else ""
    return Instance(
        instruction="\n".join(wishes),
        files=history.files(),
        dockerfile=DOCKERFILE,
        tests=judged_by(
            {"check": "lines", "path": "/app/answer.txt", "lines": [ids[bad_at]]},
            git_state({"main": branch}, head="main"),
        ),
        solution=_SOLVE_BISECT.replace("FIRST", ids[0]).replace("MODULE", name) + undo,
        max_turns=draw.at(6, 8, 12, 16, 24),
    )


def _values(subject: Subject) -> list[list[Any]]:
    return [edge for edge in subject.edges if "value" in answer(subject.function, edge)]


_BISECTABLE = [(s, bug) for s in SUBJECTS for bug in s.bugs if any(s.shows(bug, edge) for edge in _values(s))]


def _check(subject: Subject, module: str) -> str:
    lines = ["import sys", "", "sys.dont_write_bytecode = True", "", f"import {module}  # noqa: E402", ""]
    for edge in _values(subject):
        wanted = answer(subject.function, edge)["value"]
        lines.append(f"assert {module}.{subject.name}({', '.join(map(repr, edge))}) == {wanted!r}")
    return "\n".join([*lines, 'print("good")', ""])


_SOLVE_BISECT = """\
git bisect start main FIRST > run.log 2>&1
cat > judge.sh <<'END_OF_FILE'
python3 -c 'compile(open("MODULE").read(), "MODULE", "exec")' || exit 125
python3 check.py
END_OF_FILE
git bisect run sh judge.sh > run.log 2>&1
rm run.log judge.sh
git rev-parse refs/bisect/bad > /app/answer.txt
git bisect reset > /dev/null 2>&1
"""


FAMILY = Family(
    name="bisect",
    suite="repo",
    make=_bisect,
    levels=(
        "5 commits",
        "8 commits",
        "16 commits, and the change undone",
        "32 commits, some do not compile",
        "64 commits",
    ),
)
