"""Take a secret out of a whole history: several branches, two secrets, a commit message, a tag."""

from __future__ import annotations

from muster_suites.frame import Draw, Family, Instance
from muster_suites.judging import judged_by
from muster_suites.repo.history import DOCKERFILE, History
from muster_suites.repo.place import REPO, git_state, worktree

Line = list[tuple[dict[str, str], str]]
"""Files and message of each commit."""


def _purge_secret(draw: Draw) -> Instance:
    level = draw.difficulty
    secrets = [f"key-{draw.hexadecimal(24)}" for _ in range(2 if level >= 4 else 1)]
    path, other = f"{draw.word()}.conf", f"docs/{draw.word()}.txt"
    count = draw.at(1, 4, 5, 7, 9)
    since = 0 if level == 1 else draw.number(1, count - 2)
    line: Line = []
    for index in range(count):
        files = {path: f"name = {draw.pair()}\n", other: f"{draw.pair()}\n"}
        message = f"Set {draw.pair(' ')}"
        if index >= since:
            files[path] += f"token = {secrets[0]}\n"
        if index == since and level >= 4:
            files[other] += f"password {secrets[1]}\n"
        if index == since and level == 5:
            message += f"\n\nUses {secrets[0]}"
        line.append((files, message))
    branch = (draw.word(), f"{draw.pair()}\n") if level >= 3 else None
    tags = [f"v{draw.number(1, 9)}.0"] if level == 5 else []
    clean_line = [({p: _redacted(t, secrets) for p, t in files.items()}, _redacted(m, secrets)) for files, m in line]
    clean = _history(clean_line, since, branch, tags)
    logs = {name: {"log": [[c.subject, c.tree] for c in clean.line(tip)]} for name, tip in clean.branches.items()}
    return Instance(
        instruction=_instruction(level, secrets, path, other),
        files=_history(line, since, branch, tags).files(),
        dockerfile=DOCKERFILE,
        tests=judged_by(git_state(logs, head="main", forbidden=secrets, tags=tags), worktree(clean_line[-1][0])),
        solution=_SOLVE_PURGE.replace("PATTERN", f"s/{'/REDACTED/g;s/'.join(secrets)}/REDACTED/g"),
        max_turns=draw.at(6, 8, 12, 16, 24),
    )


def _history(line: Line, since: int, branch: tuple[str, str] | None, tags: list[str]) -> History:
    """The commits on main; at the commit `since`, the tags, and a branch (its name, and the text of its own file)."""
    history, ids = History(), list[str]()
    for files, message in line:
        ids.append(history.commit(files, message, ids[-1:]))
    history.branches["main"] = ids[-1]
    history.tags.update(dict.fromkeys(tags, ids[since]))
    if branch is not None:
        files = {**line[since][0], "branch.txt": branch[1]}
        history.branches[branch[0]] = history.commit(files, "Work on a branch", [ids[since]])
    return history


def _instruction(level: int, secrets: list[str], path: str, other: str) -> str:
    wishes = [
        f"In the git repository {REPO}, a secret was committed: {secrets[0]} in {path}.",
        "Replace each secret by REDACTED in the whole history, of all branches and tags: no commit that any ref "
        "reaches may hold it (this includes refs that tools leave as a backup, such as refs/original).",
        "Everything else stays: the commits in their order with their subjects, and all other contents.",
    ]
    if level >= 4:
        wishes.insert(1, f"So was {secrets[1]}, in {other} of some commit.")
    if level == 5:
        wishes.insert(2, "A commit message holds the first one as well.")
    return "\n".join(wishes)


def _redacted(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "REDACTED")
    return text


_SOLVE_PURGE = """\
export FILTER_BRANCH_SQUELCH_WARNING=1
git filter-branch --tree-filter "find . -type f -exec sed -i 'PATTERN' {} +" --msg-filter "sed 'PATTERN'" \\
    --tag-name-filter cat -- --all > run.log 2>&1
rm run.log
git for-each-ref --format='delete %(refname)' refs/original | git update-ref --stdin
"""


FAMILY = Family(
    name="purge-secret",
    suite="repo",
    make=_purge_secret,
    levels=(
        "the only commit",
        "several of four commits",
        "two branches",
        "two secrets",
        "a message, a tag",
    ),
)
