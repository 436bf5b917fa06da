"""Set permissions as a policy file says: patterns, the last match, rules for one kind, exceptions, a link."""

from __future__ import annotations

import fnmatch
from typing import Any

from muster_suites.frame import DOCKERFILE, Draw, Family, File, Instance
from muster_suites.judging import judged_by, tree


def _permissions(draw: Draw) -> Instance:
    level = draw.difficulty
    folders = draw.words(draw.at(1, 2, 3, 4, 5))
    files = [f"{draw.choice(folders)}/{draw.word()}.{draw.choice(('txt', 'sh', 'key'))}" for _ in range(4 + 2 * level)]
    if level >= 4:
        files += [f"{folders[0]}/{draw.word()}/{draw.word()}.key" for _ in range(3)]
    kinds = dict.fromkeys(files, "file")
    kinds |= {parent: "dir" for path in files for parent in _parents(path)}
    before = {path: "755" if kind == "dir" else draw.choice(("644", "666", "600")) for path, kind in kinds.items()}
    policy = _policy(draw, files, folders)
    after = {path: _decided(path, kind, before[path], policy) for path, kind in kinds.items()}
    contents = {path: f"{draw.pair()}\n" for path in files}
    link = f"{folders[0]}/current.key"
    expected: dict[str, Any] = {
        path: {"type": kind, "mode": after[path], **({"text": contents[path]} if kind == "file" else {})}
        for path, kind in kinds.items()
    }
    if level == 5:
        expected[link] = {"type": "link", "target": "../../outside.key"}
    outside_stays = tree("/app", {"outside.key": {"type": "file", "mode": "644"}}, exact=False)
    return Instance(
        instruction=_instruction(level),
        files={
            "files/policy.txt": "".join(f"{' '.join(rule)}\n" for rule in policy),
            **{f"files/site/{path}": File(content=contents[path], mode=int(before[path], 8)) for path in files},
            **({"files/outside.key": "outside\n"} if level == 5 else {}),
        },
        dockerfile=DOCKERFILE + (f"RUN ln -s ../../outside.key site/{link}\n" if level == 5 else ""),
        tests=judged_by(tree("/app/site", expected), *([outside_stays] if level == 5 else [])),
        solution="\n".join(f"chmod {mode} site/{path}" for path, mode in after.items() if mode != before[path]),
        max_turns=draw.at(4, 6, 8, 12, 16),
    )


def _instruction(level: int) -> str:
    rules = [
        "/app/policy.txt holds one rule in each line: a mode and a path, relative to /app/site.",
        "Set the permissions of what is in /app/site accordingly. What no rule names keeps its mode.",
    ]
    if level >= 3:
        rules.append(
            "In a path, * stands for any characters, also for slashes; of several matching rules the last counts."
        )
    if level >= 4:
        rules.append("A rule that begins with `file` or `dir` is for files or directories alone.")
    if level == 5:
        rules.append(
            "The mode `keep` means: leave it as it is. Symbolic links are not followed: what they point to is not "
            "changed unless a rule names it by its own path. Do not add or remove anything."
        )
    return "\n".join(rules)


def _policy(draw: Draw, files: list[str], folders: list[str]) -> list[tuple[str, ...]]:
    level = draw.difficulty
    modes = ("640", "440", "700", "604", "664")
    rules: list[tuple[str, ...]] = [(draw.choice(modes), path) for path in draw.sample(files, draw.at(2, 4, 2, 2, 2))]
    if level == 2:
        rules.append((draw.choice(("750", "711")), files[0].split("/")[0]))
    if level >= 3:
        patterns = [("640", "*.txt"), ("750", "*.sh"), ("400", "*.key"), ("604", f"{folders[0]}/*.txt")]
        rules = draw.shuffled([*patterns, *rules])
    if level >= 4:
        rules = draw.shuffled([*rules, ("dir", draw.choice(("711", "750")), "*"), ("file", "660", f"{folders[0]}/*")])
    if level == 5:
        rules = [*rules, ("keep", draw.choice(files)), ("file", "keep", f"{folders[1]}/*.sh")]
    # whatever was drawn, the first file's mode changes
    return [*rules, ("file", "751", files[0]) if level >= 4 else ("751", files[0])]


def _decided(path: str, kind: str, mode: str, policy: list[tuple[str, ...]]) -> str:
    for *only, wanted, pattern in policy:
        if fnmatch.fnmatchcase(path, pattern) and only in ([], [kind]):
            decided = wanted
            mode = mode if decided == "keep" else decided
    return mode


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[: i + 1]) for i in range(len(parts) - 1)]


FAMILY = Family(
    name="permissions",
    suite="terminal",
    make=_permissions,
    levels=(
        "three files named in full",
        "six paths, a directory among them",
        "patterns, the last match decides",
        "rules for files or directories alone, deeper trees",
        "exceptions, and a link that must not be followed",
    ),
)
