"""Merge two branches that changed the same lines, keeping what either meant."""

from __future__ import annotations

from muster_suites.frame import Draw, Family, Instance
from muster_suites.judging import judged_by
from muster_suites.repo.history import DOCKERFILE, History, written
from muster_suites.repo.place import REPO, UNFINISHED, git_state, worktree


def _merge_conflict(draw: Draw) -> Instance:
    level = draw.difficulty
    files = [f"{draw.word()}.txt" for _ in range(draw.at(1, 1, 2, 3, 4))]
    feature = draw.word()
    base: dict[str, dict[str, int]] = {
        path: {name: draw.number(10, 40) for name in draw.words(draw.at(3, 4, 4, 5, 5))} for path in files
    }
    ours = {path: dict(entries) for path, entries in base.items()}
    theirs = {path: dict(entries) for path, entries in base.items()}
    for path in files:
        names = sorted(base[path])
        both = names[0]
        if level >= 2:  # both raise the same one
            ours[path][both] += draw.number(1, 5)
            theirs[path][both] += draw.number(6, 9)
            if draw.chance(0.5):
                ours[path][both], theirs[path][both] = theirs[path][both], ours[path][both]
        ours[path][f"{names[-1]}-{draw.word()}"] = draw.number(10, 40)
        theirs[path][f"{names[-1]}-{draw.word()}"] = draw.number(10, 40)
        if level >= 3:
            del ours[path][names[1]]
        if level >= 4:
            theirs[path][names[2]] += 3
    merged = {path: _merged(base[path], ours[path], theirs[path]) for path in files}
    history = History()
    start = history.commit(_listed(base), "List the versions")
    history.branches["main"] = history.commit(_listed(ours), "Update on main", [start])
    tip = history.commit(_listed(theirs), f"Update for {feature}", [start])
    if level == 5:
        moved = {**_listed(theirs), "docs/rules.txt": f"{draw.pair()}\n"}
        tip = history.commit(moved, "Write the rules", [tip])
    history.branches[feature] = tip
    result = {**history.commits[tip].files, **_listed(merged)}
    return Instance(
        instruction=_instruction(level, feature, files),
        files=history.files(),
        dockerfile=DOCKERFILE,
        tests=judged_by(
            git_state({"main": {"files": result, "contains": [history.branches["main"], tip]}}, head="main"),
            worktree(result),
            UNFINISHED,
        ),
        solution=f"git merge -q {feature} || true\n{written(_listed(merged))}git add -A\ngit commit -q -m Merge",
        max_turns=draw.at(6, 8, 12, 16, 24),
    )


def _instruction(level: int, feature: str, files: list[str]) -> str:
    wishes = [
        f"In the git repository {REPO}, merge the branch {feature} into main (a merge commit; both branches stay in "
        f"its history). {', '.join(files)} conflict{'s' if len(files) == 1 else ''}: each line is a name and a number, "
        "sorted by name. Keep what either branch added.",
    ]
    if level >= 2:
        wishes.append("Where both changed a number, the larger one counts.")
    if level >= 3:
        wishes.append("What either branch removed is gone, and what only one changed is changed.")
    wishes.append("When done, main is checked out and the working tree is clean.")
    return "\n".join(wishes)


def _merged(base: dict[str, int], ours: dict[str, int], theirs: dict[str, int]) -> dict[str, int]:
    result: dict[str, int] = {}
    for name in {*ours, *theirs}:
        if name in base and not (name in ours and name in theirs):
            continue
        result[name] = max(ours.get(name, 0), theirs.get(name, 0))
    return result


def _listed(files: dict[str, dict[str, int]]) -> dict[str, str]:
    return {path: "".join(f"{name} {entries[name]}\n" for name in sorted(entries)) for path, entries in files.items()}


FAMILY = Family(
    name="merge-conflict",
    suite="repo",
    make=_merge_conflict,
    levels=(
        "both add at the same place",
        "both raise the same number",
        "two files, removed lines",
        "three files, changes of one side alone",
        "four files, a longer branch",
    ),
)
