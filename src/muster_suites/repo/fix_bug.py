"""Repair functions that do not what their docstrings say. Hidden calls decide, run as another user."""

from __future__ import annotations

from collections.abc import Mapping

from muster_suites.frame import Draw, Family, Instance
from muster_suites.judging import judged_by
from muster_suites.repo.history import DOCKERFILE, History, written
from muster_suites.repo.place import REPO
from muster_suites.repo.subjects import Subject, answer, deal, module_source


def _fix_bug(draw: Draw) -> Instance:
    level = draw.difficulty
    package, modules = draw.word(), deal(draw, draw.at(1, 1, 2, 2, 3), draw.at(1, 2, 2, 3, 3))
    subjects = [subject for group in modules.values() for subject in group]
    broken = {subject.name: draw.choice(subject.bugs) for subject in draw.sample(subjects, draw.at(1, 1, 2, 2, 3))}
    good = {f"{package}/{name}.py": module_source([s.source for s in group]) for name, group in modules.items()}
    bad = {
        f"{package}/{name}.py": module_source(
            [s.broken(broken[s.name]) if s.name in broken else s.source for s in group]
        )
        for name, group in modules.items()
    }
    common = {f"{package}/__init__.py": "", "README.md": f"# {package}\n"}
    history = History()
    first = history.commit(common, "Start")
    history.branches["main"] = history.commit({**common, **bad}, "Add the functions", [first])
    reports = [
        _report(subject, package, modules, broken[subject.name]) for subject in subjects if subject.name in broken
    ]
    wishes = [f"{REPO} holds the Python package {package}; the docstring of each function says what it shall do."]
    if level <= 3:
        wishes += [f"A user reports: {report}" for report in reports]
        wishes.append("Repair the code, not only for these inputs.")
    else:
        count = {1: "One function does", 2: "Two functions do", 3: "Three functions do"}[len(broken)]
        wishes.append(f"{count} not do what the docstring says. Find and repair the code.")
    wishes.append("Names and modules of the functions stay as they are.")
    calls = [c for name, group in modules.items() for s in group for c in s.calls(draw, f"{package}.{name}", 20)]
    return Instance(
        instruction="\n".join(wishes),
        files=history.files(),
        dockerfile=DOCKERFILE,
        tests=judged_by({"check": "calls", "source": REPO, "calls": calls}),
        solution=written({path: text for path, text in good.items() if bad[path] != text}),
        max_turns=draw.at(6, 8, 12, 16, 24),
    )


def _report(subject: Subject, package: str, modules: Mapping[str, list[Subject]], bug: tuple[str, str]) -> str:
    module = next(name for name, group in modules.items() if subject in group)
    arguments = next(edge for edge in subject.edges if subject.shows(bug, edge))
    wanted = answer(subject.function, arguments)
    should = f"give {wanted['value']!r}" if "value" in wanted else f"raise {wanted['raises']}"
    call = f"{subject.name}({', '.join(map(repr, arguments))})"
    return f"{call} of {package}/{module}.py should {should}, but does not."


FAMILY = Family(
    name="fix-bug",
    suite="repo",
    make=_fix_bug,
    levels=(
        "one function, one bug, a failing call",
        "two functions, one bug, a failing call",
        "two modules, two bugs, a failing call of each",
        "six functions, two bugs, only the docstrings",
        "nine functions in three modules, three bugs, only the docstrings",
    ),
)
