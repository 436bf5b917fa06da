"""Write a changelog from the subjects between tags: kinds, scopes, breaking changes."""

from __future__ import annotations

from muster_suites.frame import Draw, Family, Instance, in_python
from muster_suites.judging import judged_by
from muster_suites.repo.history import DOCKERFILE, History
from muster_suites.repo.place import REPO, git_state

KINDS = {"feat": "Features", "fix": "Fixes"}


def _changelog(draw: Draw) -> Instance:
    level = draw.difficulty
    history = History()
    tip = history.commit({"a.txt": "start\n"}, "chore: start")
    history.tags["v0.1"] = tip
    sections: list[str] = []
    for version in range(draw.at(1, 1, 2, 4, 6)):
        found: dict[str, list[str]] = {title: [] for title in ("Breaking", *KINDS.values())}
        for _ in range(draw.at(3, 6, 7, 9, 12)):
            kind = draw.choice(("feat", "fix", "docs", "chore"))
            scope = f"({draw.choice(('api', 'web', 'cli'))})" if level >= 3 and draw.chance(0.5) else ""
            breaking = "!" if level >= 4 and draw.chance(0.2) else ""
            text = draw.pair(" ")
            body = f"\n\nfix: not a subject {draw.number(1, 99)}" if level >= 2 and draw.chance(0.3) else ""
            tip = history.commit({"a.txt": f"{text}\n"}, f"{kind}{scope}{breaking}: {text}{body}", [tip])
            line = f"- {scope[1:-1]}: {text}" if scope else f"- {text}"
            if breaking:
                found["Breaking"].append(line)
            elif kind in KINDS:
                found[KINDS[kind]].append(line)
        name = f"v1.{version}"
        history.tags[name] = tip
        lines = [f"## {name}"] + [entry for title in found if found[title] for entry in (f"### {title}", *found[title])]
        sections.insert(0, "\n".join(lines))
    history.branches["main"] = tip
    return Instance(
        instruction=_instruction(level),
        files=history.files(),
        dockerfile=DOCKERFILE,
        tests=judged_by(
            {"check": "lines", "path": "/app/CHANGELOG.md", "lines": "\n".join(sections).split("\n")},
            git_state({"main": {"commit": tip}}),
        ),
        solution=in_python(_SOLVE_CHANGELOG),
        max_turns=draw.at(6, 8, 12, 16, 24),
    )


def _instruction(level: int) -> str:
    wishes = [
        f"Write /app/CHANGELOG.md for the git repository {REPO}: for each tag from v1.0 on, the newest first, a "
        "line `## TAG`, and below it the commits since the tag before, in order, the oldest first.",
        "Commits whose subject begins with `feat` are listed below a line `### Features`, those with `fix` after "
        "them below `### Fixes`; others are left out, and so are headings without commits. The line for "
        "`feat: some text` is `- some text`.",
    ]
    if level >= 3:
        wishes.append("A subject may have a scope: the line for `fix(api): some text` is `- api: some text`.")
    if level >= 4:
        wishes.append(
            "An exclamation mark before the colon marks a breaking change of any kind: such commits are listed below "
            "`### Breaking`, before the others, and only there."
        )
    return "\n".join(wishes)


_SOLVE_CHANGELOG = r"""
import re, subprocess
git = lambda *words: subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.splitlines()
tags = git("tag", "--sort=v:refname")
with open("/app/CHANGELOG.md", "w") as file:
    for before, tag in reversed(list(zip(tags, tags[1:]))):
        print(f"## {tag}", file=file)
        found = {"Breaking": [], "Features": [], "Fixes": []}
        for subject in git("log", "--reverse", "--format=%s", f"{before}..{tag}"):
            kind, scope, breaking, text = re.fullmatch(r"(\w+)(?:\((\w+)\))?(!?): (.*)", subject).groups()
            title = "Breaking" if breaking else {"feat": "Features", "fix": "Fixes"}.get(kind)
            if title:
                found[title].append(f"- {scope}: {text}" if scope else f"- {text}")
        for title, lines in found.items():
            if lines:
                print(f"### {title}", *lines, sep="\n", file=file)
"""


FAMILY = Family(
    name="changelog",
    suite="repo",
    make=_changelog,
    levels=(
        "three commits",
        "six commits with longer messages",
        "two versions, scopes",
        "four versions, breaking changes",
        "six versions of twelve commits",
    ),
)
