"""Write functions from their docstrings and a few visible tests. Hidden calls decide; the tests must stay."""

from __future__ import annotations

from muster_suites.frame import Draw, Family, Instance
from muster_suites.judging import judged_by, tree
from muster_suites.repo.history import DOCKERFILE, History, written
from muster_suites.repo.place import REPO
from muster_suites.repo.subjects import Subject, answer, deal, module_source


def _implement(draw: Draw) -> Instance:
    level = draw.difficulty
    package, modules = draw.word(), deal(draw, draw.at(1, 1, 1, 2, 2), draw.at(1, 2, 3, 2, 3))
    missing = [s.name for group in modules.values() for s in draw.sample(group, draw.at(1, 1, 2, 2, 3))]
    common = {f"{package}/__init__.py": ""}
    good = {f"{package}/{name}.py": module_source([s.source for s in group]) for name, group in modules.items()}
    hollow = {
        f"{package}/{name}.py": module_source([s.hollow() if s.name in missing else s.source for s in group])
        for name, group in modules.items()
    }
    tests = {
        f"test_{name}.py": _visible_test(package, name, [s for s in group if s.name in missing])
        for name, group in modules.items()
    }
    history = History()
    history.branches["main"] = history.commit({**common, **hollow, **tests}, "Specify the functions")
    wishes = [
        f"{REPO} holds the Python package {package}. In {' and '.join(hollow)} some functions are not written yet: "
        "they raise NotImplementedError. Write them, as their docstrings say.",
        f"The tests in {' and '.join(tests)} (run `python3 -m unittest` in {REPO}) shall pass; do not change them.",
    ]
    if level >= 3:
        wishes.append("They show a few cases only: all that the docstrings promise will be tried.")
    calls = [c for name, group in modules.items() for s in group for c in s.calls(draw, f"{package}.{name}", 20)]
    return Instance(
        instruction="\n".join(wishes),
        files=history.files(),
        dockerfile=DOCKERFILE,
        tests=judged_by(
            tree(REPO, tests, exact=False),
            {"check": "calls", "source": REPO, "calls": calls},
        ),
        solution=written(good),
        max_turns=draw.at(6, 8, 12, 16, 24),
    )


def _visible_test(package: str, module: str, subjects: list[Subject]) -> str:
    lines = ["import unittest", "", f"from {package} import {module}", "", "", "class Test(unittest.TestCase):"]
    for subject in subjects:
        lines.append(f"    def test_{subject.name}(self):")
        for arguments in subject.edges[:2]:
            wanted = answer(subject.function, arguments)
            call = f"{module}.{subject.name}({', '.join(map(repr, arguments))})"
            if "value" in wanted:
                lines.append(f"        self.assertEqual({call}, {wanted['value']!r})")
            else:
                lines += [f"        with self.assertRaises({wanted['raises']}):", f"            {call}"]
        lines.append("")
    return "\n".join([*lines, "", 'if __name__ == "__main__":', "    unittest.main()", ""])


FAMILY = Family(
    name="implement",
    suite="repo",
    make=_implement,
    levels=(
        "one function",
        "one of two functions",
        "two of three, more cases than the tests show",
        "four functions in two modules",
        "six functions in two modules",
    ),
)
