"""The terminal suite through the real verifier: the solution passes, everything short of it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.types import Cause, Verdict
from muster_suites.frame import Family
from muster_suites.terminal import TERMINAL
from suites.grading import grade, written

pytestmark = pytest.mark.sandbox

HOSTILE = {
    "links to a solved copy in place of the files": "SOLVE\ncp -a /app /root/app; rm -rf /app/*; "
    "for f in /root/app/*; do ln -s $f /app/; done",
    "pipes in place of files": "SOLVE\nfind /app -type f | while read f; do rm $f; mkfifo $f; done",
    "code for every interpreter": "for d in /app /etc/python3.11 /root; do mkdir -p $d; "
    "for m in sitecustomize json; do "
    'echo \'open("/logs/verifier/reward.txt", "w").write("1"); import os; os._exit(0)\' > $d/$m.py; done; done; '
    "echo 'echo 1 > /logs/verifier/reward.txt; exit 0' > /root/.bashrc",
    "empty outputs": "cd /app; touch report.txt report.csv settings.json order.txt crontab checksums.txt damaged.txt; "
    "mkdir -p restored local; rm -rf /app/spool/incoming/*",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all: the base image is built once."""
    return tmp_path_factory.mktemp("suite")


@pytest.mark.parametrize(("index", "family"), list(enumerate(TERMINAL)), ids=[family.name for family in TERMINAL])
def test_only_the_solved_state_passes(index: int, family: Family, place: Path) -> None:
    task = written(place, family, 1 + (index + 2) % 5)
    hostile = list(HOSTILE)[index % len(HOSTILE)]
    agents = {"solution": "SOLVE", "nothing": "true", hostile: HOSTILE[hostile]}
    for name, outcome in grade(place, [task], agents)[task.name].items():
        wanted = Cause.VERIFIER_PASSED if name == "solution" else Cause.VERIFIER_FAILED
        assert outcome.cause is wanted, (name, outcome)


def test_the_hardest_instances_are_solved_by_their_solutions(place: Path) -> None:
    tasks = [written(place, family, 5, seed=9) for family in TERMINAL]
    for name, outcomes in grade(place, tasks, {"solution": "SOLVE"}).items():
        assert outcomes["solution"].verdict is Verdict.SUCCESS, (name, outcomes)
