"""Rename a function wherever it is used, and nothing that only looks like it. All files decide."""

from __future__ import annotations

from muster_suites.frame import Draw, Family, Instance, in_python
from muster_suites.judging import judged_by
from muster_suites.repo.history import DOCKERFILE, History
from muster_suites.repo.place import REPO, worktree


def _rename_symbol(draw: Draw) -> Instance:
    level = draw.difficulty
    package, old, new = draw.word(), draw.pair("_"), draw.pair("_")
    modules = draw.words(draw.at(1, 2, 3, 5, 7))
    before = {f"{package}/__init__.py": ""} | {
        f"{package}/{name}.py": _user_of("{NAME}", old, package, modules[0], index, level)
        for index, name in enumerate(modules)
    }
    if level >= 4:
        before["README.md"] = f"Call {{NAME}} first. The setting {old}_limit is read from the file {old}.ini.\n"
    after = {path: text.replace("{NAME}", new) for path, text in before.items()}
    before = {path: text.replace("{NAME}", old) for path, text in before.items()}
    history = History()
    history.branches["main"] = history.commit(before, "Add the package")
    wishes = [
        f"In the Python package {REPO}/{package}, rename the function {old} of {package}/{modules[0]}.py to {new}, "
        "everywhere it is defined, imported or used. Change nothing else.",
    ]
    if level >= 2:
        wishes.append(f"Longer names that contain {old} are other names and stay.")
    if level >= 3:
        wishes.append("Texts in quotes stay as well: they name keys of stored files, not the function.")
    if level >= 4:
        wishes.append(
            f"Comments, docstrings and {REPO}/README.md that speak of the function follow; settings and files named "
            "there stay."
        )
    return Instance(
        instruction="\n".join(wishes),
        files=history.files(),
        dockerfile=DOCKERFILE,
        tests=judged_by(worktree(after)),
        solution=in_python(f"OLD, NEW = {old!r}, {new!r}\n{_SOLVE_RENAME}"),
        max_turns=draw.at(6, 8, 12, 16, 24),
    )


def _user_of(name: str, old: str, package: str, home: str, index: int, level: int) -> str:
    """A module that defines the function (the first) or uses it, in one of three ways."""
    doc = f'    """See {name} for the rules."""\n' if level >= 4 else ""
    key = f'    key = "{old}"\n' if level >= 3 else ""
    longer = f"\n\ndef {old}_limit():\n    return {index + 3}\n" if level >= 2 else ""
    if index == 0:
        first = f"def {name}(value):\n{key}    return value + 1\n"
        return f"{first}{longer}\n\ndef twice(value):\n{doc}    return {name}({name}(value))\n"
    imported, use = (
        (f"from {package}.{home} import {name} as step", "step"),
        (f"from {package} import {home}", f"{home}.{name}"),
        (f"from {package}.{home} import {name}", name),
    )[index % 3]
    comment = f"    # {name} adds one\n" if level >= 4 else ""
    return f"{imported}\n{longer}\n\ndef run(values):\n{doc}{key}{comment}    return [{use}(v) for v in values]\n"


_SOLVE_RENAME = """
import glob, re
for path in glob.glob("**/*", recursive=True):
    if path.endswith((".py", ".md")):
        text = open(path).read()
        text = re.sub(rf"(?<![\\w\\"]){OLD}(?![\\w.])|(?<=[.]){OLD}(?!\\w)", NEW, text)
        open(path, "w").write(text)
"""


FAMILY = Family(
    name="rename-symbol",
    suite="repo",
    make=_rename_symbol,
    levels=(
        "one module",
        "two modules, longer names",
        "three modules, the name in texts",
        "five modules, comments and a README",
        "seven modules",
    ),
)
