"""Each rule refuses a tree that breaks it, and says where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from rules import configured, docstrings, folders, mirror, names, options, patching, purity, records, size, strictness
from rules.tree import Tree

STRICT = '[tool.basedpyright]\ntypeCheckingMode = "strict"\n'
DOCUMENTED = '"""A module."""\n'


def tree(root: Path, **files: str) -> Tree:
    """Files by their path, with `__` for each `/`."""
    for name, text in {"pyproject.toml": STRICT, **{f"{n.replace('__', '/')}.py": t for n, t in files.items()}}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree(root)


def body(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


PATCH = "import sys\n\nfrom muster.transport import files\n\n\ndef test_it(monkeypatch):\n    monkeypatch.{how}\n"
CLASS = DOCUMENTED + "\n\nclass Twice:\n    pass\n"


@pytest.mark.parametrize(
    ("rule", "files", "said"),
    [
        (size.problems, {"src__a": "x = 1\n" * 501}, "src/a.py: 501 lines"),
        (size.problems, {"tests__a": body(51)}, "tests/a.py:1: f has 51 lines"),
        (size.problems, {"src__a": "class A:\n    " + "async " + body(51).replace("\n", "\n    ")}, "f has 51 lines"),
        (names.problems, {"src__muster__a__x": CLASS, "src__muster__b__y": CLASS}, "class Twice is defined in src"),
        (docstrings.problems, {"src__a": '"""What a file is."""\n'}, "src/a.py:1: a docstring opens with What"),
        (docstrings.problems, {"src__a": 'class A:\n    """*Who*: it."""\n'}, "src/a.py:1: a docstring opens with Who"),
        (docstrings.problems, {"src__a": 'async def f():\n    """\n    How.\n    """\n'}, "opens with How"),
        (folders.problems, {f"src__p__m{n}": "" for n in range(25)}, "src/p: 25 modules"),
        (folders.problems, {f"src__p__fit_{n}": "" for n in "abc"}, "make it the folder fit/"),
        (patching.problems, {"tests__a": PATCH.format(how='setattr(files, "X", 1)')}, "tests/a.py:7: patches files"),
        (patching.problems, {"tests__a": PATCH.format(how='setattr("muster.files.X", 1)')}, "patches 'muster"),
        (patching.problems, {"tests__a": PATCH.format(how='setitem(files.T, "k", 1)')}, "patches files.T"),
        (mirror.problems, {"tests__nowhere__test_a": ""}, "src/muster/nowhere does not exist"),
        (mirror.problems, {"tests__test_a": ""}, "tests no module src/muster/a.py"),
        (purity.problems, {"src__a": '"""Numbers. Law: pure."""\nimport asyncio\n'}, "imports asyncio"),
        (purity.problems, {"src__a": '"""Numbers. Pure."""\nfrom muster import clock\n'}, "imports muster.clock"),
        (purity.problems, {"src__a": '"""Numbers. Law: pure."""\nasync def f(): ...\n'}, "f is async"),
        (records.problems, {"src__a": "x = 1\n"}, "has no docstring"),
        (records.problems, {"src__a": DOCUMENTED + "@dataclass(frozen=True)\nclass A: ...\n"}, "A has no slots"),
        (strictness.problems, {"src__a": "# pyright: reportMissingImports=false\n"}, "relaxes types"),
        (strictness.problems, {"src__a": "x = f()  # type: ignore\n"}, "src/a.py:1: ignores every rule"),
    ],
)  # fmt: skip
def test_a_tree_that_breaks_a_rule_is_refused(
    tmp_path: Path, rule: Callable[[Tree], Iterator[str]], files: dict[str, str], said: str
) -> None:
    found = list(rule(tree(tmp_path, **files)))
    assert any(said in problem for problem in found), found


def test_what_keeps_the_rules_is_passed(tmp_path: Path) -> None:
    kept = tree(
        tmp_path,
        src__muster__a__x=DOCUMENTED + "\n\n@dataclass(slots=True)\nclass Once:\n    pass\n\n\n" + body(50),
        src__muster__b__pure='"""Numbers. Law: pure."""\nimport math\n',
        src__muster__b__heavy=DOCUMENTED + "# pyright: reportUnknownMemberType=false\nimport torch\n",
        src__muster__b__whether=DOCUMENTED + 'def f():\n    """Whether it does what it says: how, when, why."""\n',
        src__muster_suites__judge__a='"""What is copied into tasks."""\n',
        src__muster__b__one=DOCUMENTED + "x = f()  # pyright: ignore[reportCallIssue]\n",
        tests__a__test_x=PATCH.format(how='setattr(sys, "argv", [])'),
        tests__contract__test_y=PATCH.format(how='setenv("HOME", "/")'),
        tests__test_a="",
    )
    rules = (configured, docstrings, folders, mirror, patching, purity, records, size, strictness)
    assert [problem for rule in rules for problem in rule.problems(kept)] == []


def test_a_name_on_the_list_may_be_there_twice_and_one_that_is_not_must_leave_the_list(tmp_path: Path) -> None:
    twice = tree(tmp_path, src__muster__a__x=CLASS, src__muster__b__y=CLASS)
    assert list(names.problems(twice, {"Twice": "a reason"})) == []
    (problem,) = names.problems(twice, {"Twice": "a reason", "Once": "another"})
    assert "Once is defined once" in problem


@pytest.mark.parametrize(
    ("lines", "gone"),
    [
        ('[tool.basedpyright]\nstrict = ["src/muster/journal.py"]', "src/muster/journal.py"),
        ('[tool.basedpyright]\ninclude = ["source"]', "source"),
        ('[tool.hatch.build.targets.wheel]\npackages = ["src/other"]', "src/other"),
        ('[tool.ruff.lint.per-file-ignores]\n"src/muster/time.py" = ["E"]', "src/muster/time.py"),
        ('[project.scripts]\nmuster = "muster.cli:main"', "muster.cli"),
        ('[[tool.importlinter.contracts]]\nname = "n"\ncontainers = ["muster"]\nlayers = ["a | gone"]', "muster.gone"),
        ('[[tool.importlinter.contracts]]\nname = "n"\nsource_modules = ["muster.a.z"]', "muster.a.z"),
        (
            '[tool.importlinter]\nroot_packages = ["muster"]\n'
            '[[tool.importlinter.contracts]]\nname = "n"\nforbidden_modules = ["torch", "muster.b"]',
            "muster.b",
        ),
    ],
)
def test_what_is_configured_and_gone_is_named(tmp_path: Path, lines: str, gone: str) -> None:
    made = tree(tmp_path, src__muster__a__x="")
    (tmp_path / "pyproject.toml").write_text(lines + "\n")
    (problem,) = configured.problems(made)
    assert problem.endswith(f"names {gone}, which does not exist")


def test_types_that_are_not_strict_are_refused(tmp_path: Path) -> None:
    made = tree(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.basedpyright]\ntypeCheckingMode = "standard"\n')
    assert [*strictness.problems(made)] == ["pyproject.toml: tool.basedpyright.typeCheckingMode is not strict"]


class Inner(BaseModel):
    size: int = 1


class Root(BaseModel):
    inner: Inner | None = None


def test_an_option_outside_of_config_is_refused_however_deep_it_is() -> None:
    found = list(options.problems(Root))
    assert any("Inner is part of Root: move it to config.py" in problem for problem in found), found
