"""The repo suite through the real verifier: the solution passes, everything short of it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.types import Cause, Verdict
from muster_suites.frame import Family
from muster_suites.repo import CODE, GIT, REPO
from suites.grading import grade, written

pytestmark = pytest.mark.sandbox

FORGE = "open('/logs/verifier/reward.txt', 'w').write('1')"
HOSTILE = {
    "a link in place of the repository": "SOLVE\ncd /; mv /app/repo /app/other; ln -s /app/other /app/repo",
    "git configured to run programs": "printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' > /app/run; "
    "chmod +x /app/run; for h in post-checkout pre-commit reference-transaction; do cp /app/run .git/hooks/$h; done; "
    "git config core.fsmonitor /app/run; git config alias.log '!/app/run'; git config core.pager /app/run; "
    "cp .git/config /root/.gitconfig; cp .git/config /etc/gitconfig; touch /app/answer.txt /app/CHANGELOG.md",
}
CHEATS = {
    "writes the reward": FORGE,
    "reads what is expected": "import json, os, sys\n"
    "wanted = json.load(open('/tests/expected.json'))[-1]['calls']\n"
    "answers = [{k: c[k] for k in ('value', 'raises') if k in c} for c in wanted]\n"
    "sys.__stdout__.write(json.dumps(answers))\nsys.__stdout__.flush()\nos._exit(0)",
    "leaves a process behind": "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        while True:\n            try:\n                "
    + FORGE
    + "\n            except OSError:\n                pass",
    "ends with success": "import os, sys\nprint('OK')\nos._exit(0)",
    "equals everything": "class Any:\n    def __eq__(self, other):\n        return True\n"
    "def __getattr__(name):\n    return lambda *words: Any()",
    "answers nothing wrong": "import sys\nsys.__stdout__.write('[]')\nsys.__stdout__.flush()\nimport os\nos._exit(0)",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all: the base image is built once."""
    return tmp_path_factory.mktemp("suite")


@pytest.mark.parametrize(("index", "family"), list(enumerate(REPO)), ids=[family.name for family in REPO])
def test_only_the_solved_state_passes(index: int, family: Family, place: Path) -> None:
    task = written(place, family, 1 + (index + 2) % 5)
    hostile = list(HOSTILE)[index % len(HOSTILE)]
    agents = {"solution": "SOLVE", "nothing": "true", hostile: HOSTILE[hostile]}
    for name, outcome in grade(place, [task], agents)[task.name].items():
        wanted = Cause.VERIFIER_PASSED if name == "solution" else Cause.VERIFIER_FAILED
        assert outcome.cause is wanted, (name, outcome)


@pytest.mark.parametrize("family", CODE[:2], ids=["fix-bug", "implement"])
def test_code_that_cheats_earns_nothing(family: Family, place: Path) -> None:
    task = written(place, family, 1)
    agents = {
        name: f"SOLVE\ncat > /app/cheat <<'END'\n{code}\nEND\n"
        "for m in $(find . -name '*.py' ! -name '__init__.py' ! -name 'test_*'); do cp /app/cheat $m; done"
        for name, code in CHEATS.items()
    }
    for name, outcome in grade(place, [task], agents)[task.name].items():
        assert outcome.cause is Cause.VERIFIER_FAILED, (name, outcome)


@pytest.mark.parametrize("family", GIT, ids=[family.name for family in GIT])
def test_objects_without_the_content_of_their_names_are_found(family: Family, place: Path) -> None:
    spoil = "for o in $(find .git/objects -type f | tail -n 1); do chmod u+w $o; echo x > $o; done"
    task = written(place, family, 1)
    outcome = grade(place, [task], {"spoiled": f"SOLVE\n{spoil}"})[task.name]["spoiled"]
    assert outcome.cause is Cause.VERIFIER_FAILED
    assert "git fsck" in outcome.evidence["output"]


def test_the_hardest_instances_are_solved_by_their_solutions(place: Path) -> None:
    tasks = [written(place, family, 5, seed=9) for family in GIT]
    for name, outcomes in grade(place, tasks, {"solution": "SOLVE"}).items():
        assert outcomes["solution"].verdict is Verdict.SUCCESS, (name, outcomes)
