"""Bring the commits of some tickets to a release branch, in order, and nothing else."""

from __future__ import annotations

from muster_suites.frame import Draw, Family, Instance
from muster_suites.judging import judged_by
from muster_suites.repo.history import DOCKERFILE, History
from muster_suites.repo.place import REPO, UNFINISHED, git_state


def _cherry_pick(draw: Draw) -> Instance:
    level = draw.difficulty
    release = f"release-{draw.number(1, 9)}"
    history = History()
    files = {f"{draw.word()}.txt": f"{draw.pair()}\n" for _ in range(2)}
    if level == 5:
        files["CHANGES"] = "first\n"
    base = history.commit(files, "Release")
    tickets = [f"{draw.choice('ABCD')}-{n}" for n in draw.sample(range(100, 1000), draw.at(3, 5, 8, 12, 16))]
    picked = set(draw.sample(tickets, draw.at(1, 2, 3, 5, 6)))
    tip, now, result = base, dict(files), dict(files)
    kept: list[str] = []
    hashes: list[str] = []
    for ticket in tickets:
        for part in range(2 if level >= 3 and draw.chance(0.4) else 1):
            path = f"{draw.word()}.txt" if len(now) < 12 else draw.pair() + ".txt"
            change = {path: f"{draw.pair()}\n"}
            now |= change
            subject = f"[{ticket}] {'Add' if not part else 'Complete with'} {path}"
            if level == 5:
                now["CHANGES"] += f"{ticket} {path}\n"
            tip = history.commit(now, subject, [tip])
            if ticket in picked:
                result |= change
                if level == 5:
                    result["CHANGES"] += f"{ticket} {path}\n"
                kept.append(subject)
                hashes.append(tip)
        if level >= 4 and ticket not in picked and draw.chance(0.3):
            tip = history.commit(now, f"Notes on {draw.choice(sorted(picked))}, nothing changed", [tip])
    history.branches.update({"main": tip, release: base})
    return Instance(
        instruction=_instruction(level, release, sorted(picked)),
        files=history.files(),
        dockerfile=DOCKERFILE,
        tests=judged_by(
            git_state({"main": {"commit": tip}, release: {"files": result, "above": [base, kept[::-1]]}}),
            UNFINISHED,
        ),
        solution=f"{_SOLVE_PICK}git checkout -q {release}\n" + "".join(f"pick {name}\n" for name in hashes),
        max_turns=draw.at(6, 8, 12, 16, 24),
    )


def _instruction(level: int, release: str, picked: list[str]) -> str:
    tickets = f"{'ticket' if len(picked) == 1 else 'the tickets'} {' '.join(picked)}"
    wishes = [
        f"In the git repository {REPO}, bring the commits of {tickets} from main to the branch {release}, in the order "
        "in which they are on main, with their messages. A commit belongs to the ticket that its subject begins "
        "with, in square brackets.",
        f"Nothing else comes to {release}; main does not change.",
    ]
    if level >= 3:
        wishes.append("A ticket may have more than one commit.")
    if level == 5:
        wishes.append(
            f"The file CHANGES will conflict: on {release} it holds its first line and then the lines of the commits "
            "that were brought over, in their order."
        )
    return "\n".join(wishes)


_SOLVE_PICK = """\
pick() {
    git cherry-pick "$1" > /dev/null 2>&1 && return
    { git show HEAD:CHANGES; git show "$1:CHANGES" | tail -n 1; } > CHANGES
    git add CHANGES
    git -c core.editor=true cherry-pick --continue > /dev/null
}
"""


FAMILY = Family(
    name="cherry-pick",
    suite="repo",
    make=_cherry_pick,
    levels=(
        "one of three commits",
        "two of five",
        "three tickets of several commits",
        "five, and commits that only mention them",
        "six, each with a conflict",
    ),
)
