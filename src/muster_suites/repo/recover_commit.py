"""Find the commit of a deleted branch among look-alikes, with or without a reflog, and name it again."""

from __future__ import annotations

from muster_suites.frame import Draw, Family, Instance
from muster_suites.judging import judged_by
from muster_suites.repo.history import DOCKERFILE, History
from muster_suites.repo.place import REPO, git_state


def _recover_commit(draw: Draw) -> Instance:
    level = draw.difficulty
    path, subject, branch = f"{draw.word()}.txt", f"Describe {draw.pair(' ')}", draw.word()
    history = History()
    base = history.commit({"README.md": f"{draw.pair()}\n"}, "Start")
    main = history.commit({"README.md": f"{draw.pair()}\n"}, "Change the README", [base])
    lost: list[str] = []
    for index in range(draw.at(1, 2, 4, 6, 10)):  # the first is wanted; the others look like it
        files = {"README.md": f"{draw.pair()}\n", path: f"{draw.pair()} {index}\n"}
        words = subject if index == 0 or level >= 4 else f"Describe {draw.pair(' ')}"
        tip = history.commit(files, words, [base])
        if level >= 3 and index == 0:
            tip = history.commit({**files, "MORE.txt": f"{draw.pair()}\n"}, f"Add to it: {draw.pair(' ')}", [tip])
        lost.append(tip)
    wanted = lost[0]
    marker = history.commits[wanted].files[path].strip()
    order = draw.shuffled(lost)
    history.branches["main"] = main
    history.branches.update({f"lost{index}": tip for index, tip in enumerate(order)})
    extra = "".join(
        f"git checkout -q lost{i} && git checkout -q main && git branch -q -D lost{i}\n" for i in range(len(order))
    )
    if level >= 2:
        extra += "rm -rf .git/logs\n"
    wishes = [f"In the git repository {REPO} a branch was deleted before it was merged."]
    if level < 4:
        which = "Its last commit" if level < 3 else "Its last commit but one"
        wishes.append(f"{which} had the subject `{subject}`.")
    else:
        wishes.append(
            f"Several deleted branches had a commit with the subject `{subject}`; the one that is wanted has the text "
            f"`{marker}` in {path} at its last commit."
        )
    wishes.append(f"Make a branch {branch} that points to the last commit of the deleted branch. Do not change main.")
    if level >= 2:
        wishes.append("The reflog is gone too.")
    return Instance(
        instruction="\n".join(wishes),
        files=history.files(extra=extra),
        dockerfile=DOCKERFILE,
        tests=judged_by(git_state({"main": {"commit": main}, branch: {"commit": wanted}})),
        solution=f"git branch {branch} {wanted}",
        max_turns=draw.at(6, 8, 12, 16, 24),
    )


FAMILY = Family(
    name="recover-commit",
    suite="repo",
    make=_recover_commit,
    levels=(
        "the reflog knows it",
        "two lost commits, no reflog",
        "four, and the wanted one is not the last of its branch",
        "six of the same subject",
        "ten of the same subject",
    ),
)
